// InferenceServer: the gRPC port for clients: aisp.v1.Inference, grpc.health.v1.Health and server
// reflection. Knows no router: each call becomes an RpcCall that one handler is given on the loop,
// as HttpServer does with exchanges.
//
// Threads: gRPC's callbacks only post; handlers and every function of a call run on the loop.
// Start, Shutdown and SetServing: any one thread at a time. Bounds: connections, of all and of one
// address (closed beyond), message size, live calls, messages that are not whole yet and bytes of
// whole ones (RESOURCE_EXHAUSTED beyond), streams of one connection, the time to send a message,
// the unsent bytes of a call and the time in which a client takes nothing (a slow reader's call is
// cut). All that gRPC itself allocates counts towards its resource quota.
//
// gRPC types stay in the .cc files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "net/io_loop.h"
#include "net/tls_options.h"
#include "proto/inference_call.h"

namespace aisp {

struct InferenceServerOptions {
  std::string address = "127.0.0.1:0";  // host:port; port 0: a free one, see port()
  int listen_fd = -1;  // a listening socket to use instead of the address; taken over by Start
  TlsServerOptions tls;
  size_t max_message_bytes = 16 << 20;
  size_t max_calls = 4096;
  size_t max_unsent_bytes = 1 << 20;
  // Time in which a client for whom messages wait must take min_taken_bytes; then again.
  Duration write_timeout = std::chrono::seconds(30);
  size_t min_taken_bytes = 1;
  size_t max_connections = 4096;
  size_t max_connections_per_address = 1024;
  Duration read_timeout = std::chrono::seconds(30);  // for a whole message, or a TLS handshake
  Duration idle_timeout = std::chrono::seconds(75);  // of a connection without a call
  // Of messages: those that are not whole yet may fill it with the largest size, and so may the
  // whole ones whose calls have not ended.
  size_t max_total_bytes = 1 << 30;
  size_t max_client_bytes = 256 << 20;  // of it, not whole yet, of one party
  // By the authorization header, from any thread: whose call it is ("": of the client's address).
  // Nothing: its message is not read, and the handler, which gets an empty one, refuses it.
  std::function<std::optional<std::string>(std::string_view authorization)> party;
  // So old (10 % more or less) a connection is told to make room for another; its running calls
  // finish. How long a Drain takes at least while there are clients.
  Duration connection_age = std::chrono::seconds(10);
  uint64_t seed = 0;  // of request ids
};

// The loop and the handler must outlive the server.
class InferenceServer {
 public:
  InferenceServer(IoLoop* loop, const InferenceServerOptions& options, InferenceHandler* handler);
  ~InferenceServer();
  // The error (ALREADY_EXISTS) names address and port when it is taken and how to choose another.
  Status Start();
  // Accepts on a handed-over socket from now on; connections wait in its queue until then. Nothing
  // to do for a socket of its own, which Start opens.
  void Accept();
  uint16_t port() const;
  // Calls whose message has begun and not arrived whole. Any thread.
  size_t reading() const;
  // What Health says; NOT_SERVING until the first call. Cheap when nothing changes.
  void SetServing(bool serving);

  // `done` runs on the loop when the last call has ended. On a handed-over socket no call fails:
  // nothing is accepted any more, and the client of each connection that is connection_age old is
  // told to go elsewhere (GOAWAY). On a socket of its own, which has no successor, new calls get
  // UNAVAILABLE at once.
  void Drain(std::function<void()> done);
  // Ends what is left (UNAVAILABLE) and stops; the loop may have ended before. Idempotent.
  void Shutdown(std::chrono::milliseconds limit);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
