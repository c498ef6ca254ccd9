// gRPC behind the LinkSender/LinkDialer/LinkHandler of proto/link.h: one bidirectional stream is
// one link. Callback API: callbacks only enqueue to `post`, which runs functions in order on the
// thread of the role (IoLoop::Post for the router, the worker loop's inbox for workers). Outgoing
// queues are bounded in messages and bytes; a link above its bound goes down. Keep-alive pings
// detect dead peers. A link that is closed or lost reports LinkDown once.
//
// gRPC types stay in the .cc files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/result.h"
#include "net/link_security.h"
#include "proto/link.h"

namespace aisp {

using Poster = std::function<void(std::function<void()>)>;

struct GrpcLinkOptions {
  size_t max_queued_messages = 4096;
  size_t max_queued_bytes = 64 << 20;
  size_t max_message_bytes = 16 << 20;
  std::chrono::milliseconds keepalive_interval{2000};
  std::chrono::milliseconds keepalive_timeout{2000};
  std::shared_ptr<const LinkSecurity> security = nullptr;  // null: no authentication
};

// Keeps gRPC's threads and timers alive. gRPC 1.51 destroys its event engine with the last channel
// or server, while a timer of that channel may still access it ("full table!" in Abseil, then
// abort). A process that is about to end holds one of these and leaves with _exit.
class GrpcKeeper {
 public:
  GrpcKeeper();
  ~GrpcKeeper();
  GrpcKeeper(const GrpcKeeper&) = delete;
  GrpcKeeper& operator=(const GrpcKeeper&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A gRPC server; add services before Start. Listens on "host:port"; port 0 picks a free port.
class GrpcServer {
 public:
  GrpcServer();
  ~GrpcServer();
  // Router side of RouterControl.Attach. Returns the sender of its links; calls `handler` by
  // `post`.
  LinkSender<v1::RouterMessage>* ServeRouterControl(LinkHandler<v1::WorkerMessage>* handler,
                                                    Poster post,
                                                    const GrpcLinkOptions& options = {});
  // Prefill side of KvPeer.Session.
  LinkSender<v1::PrefillToDecode>* ServeKvPeer(LinkHandler<v1::DecodeToPrefill>* handler,
                                               Poster post, const GrpcLinkOptions& options = {});
  Status Start(const std::string& address);
  // Serves on a socket that other processes may hold too, such as a successor.
  Status StartOn(int listen_fd);
  // After StartOn: accepts no new connections; streams continue. Otherwise no effect.
  void StopAccepting();
  uint16_t port() const;
  // Ends all streams without reporting LinkDown, and stops. Takes at most `deadline`.
  void Shutdown(std::chrono::milliseconds deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::unique_ptr<LinkDialer<v1::WorkerMessage>> MakeRouterDialer(
    LinkHandler<v1::RouterMessage>* handler, Poster post, const GrpcLinkOptions& options = {});
std::unique_ptr<LinkDialer<v1::DecodeToPrefill>> MakeKvPeerDialer(
    LinkHandler<v1::PrefillToDecode>* handler, Poster post, const GrpcLinkOptions& options = {});

}  // namespace aisp
