// Links without a network, for roles in one process (`aisp serve --role all`): messages are moved
// between threads. The wiring creates the LocalHub; nothing is global. Addresses are names given to
// Serve... .
#pragma once

#include <memory>
#include <string>

#include "net/grpc_links.h"
#include "proto/link.h"

namespace aisp {

// Thread-safe. The hub owns the senders that Serve... returns. Handlers must outlive the hub
// (Serve...) or the dialer (Make...). Dialers may outlive the hub.
class LocalHub {
 public:
  // `max_queued_messages`: per link, messages sent and not yet consumed.
  explicit LocalHub(size_t max_queued_messages = GrpcLinkOptions().max_queued_messages);
  ~LocalHub();
  // An address may be served once per kind; a second time fails a check.
  LinkSender<v1::RouterMessage>* ServeRouterControl(const std::string& address,
                                                    LinkHandler<v1::WorkerMessage>* handler,
                                                    Poster post);
  LinkSender<v1::PrefillToDecode>* ServeKvPeer(const std::string& address,
                                               LinkHandler<v1::DecodeToPrefill>* handler,
                                               Poster post);
  // Stops serving this address, e.g. before its handler is destroyed: the peers' links go down.
  void StopServing(LinkKind kind, const std::string& address);
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> MakeRouterDialer(
      LinkHandler<v1::RouterMessage>* handler, Poster post);
  std::unique_ptr<LinkDialer<v1::DecodeToPrefill>> MakeKvPeerDialer(
      LinkHandler<v1::PrefillToDecode>* handler, Poster post);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
