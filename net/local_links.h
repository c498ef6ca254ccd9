// The same links without a network, for roles that live in one process (`aisp serve --role all`):
// messages are moved from poster to poster. A LocalHub is created by the wiring; nothing is global.
// Addresses are names given to Listen.
#pragma once

#include <memory>
#include <string>

#include "net/grpc_links.h"
#include "proto/link.h"

namespace aisp {

// Thread-safe: endpoints post to each other's threads. The senders that Serve... returns belong to
// the hub. Handlers must not be destroyed before the hub (Serve...) or the dialer (Make...);
// dialers may outlive the hub.
class LocalHub {
 public:
  // `max_queued_messages`: sent on one link and not yet taken by the other side's thread.
  explicit LocalHub(size_t max_queued_messages = GrpcLinkOptions().max_queued_messages);
  ~LocalHub();
  // An address is served once per kind; a second time is a failed check.
  LinkSender<v1::RouterMessage>* ServeRouterControl(const std::string& address,
                                                    LinkHandler<v1::WorkerMessage>* handler,
                                                    Poster post);
  LinkSender<v1::PrefillToDecode>* ServeKvPeer(const std::string& address,
                                               LinkHandler<v1::DecodeToPrefill>* handler,
                                               Poster post);
  // Ends what was served at this address, e.g. before its handler is destroyed: the peers' links go
  // down.
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
