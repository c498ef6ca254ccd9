// InferenceServer: the gRPC port for clients: aisp.v1.Inference, grpc.health.v1.Health and server
// reflection. Independent of the router: each call becomes an RpcCall that is given to one handler
// on the loop, as HttpServer does with exchanges.
//
// Threads: gRPC's callbacks only post; the handler and all functions of a call run on the loop.
// Start, Shutdown and SetServing: one thread at a time. Bounds: connections in total and per
// address (closed beyond), message size, live calls, incomplete messages and bytes of complete ones
// (RESOURCE_EXHAUSTED beyond), streams per connection, the time to send a message, a call's unsent
// bytes and the time in which a client takes nothing (a slow reader's call is cut). gRPC's own
// allocations count towards its resource quota.
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
  int listen_fd = -1;  // listening socket to use instead of the address; owned by Start
  TlsServerOptions tls;
  size_t max_message_bytes = 16 << 20;
  size_t max_calls = 4096;
  size_t max_unsent_bytes = 1 << 20;
  // A client with pending messages must take min_taken_bytes in each such period.
  Duration write_timeout = std::chrono::seconds(30);
  size_t min_taken_bytes = 1;
  size_t max_connections = 4096;
  size_t max_connections_per_address = 1024;
  Duration read_timeout = std::chrono::seconds(30);  // for a whole message, or a TLS handshake
  Duration idle_timeout = std::chrono::seconds(75);  // for a connection without a call
  // Limit for messages: incomplete ones, counted at the largest size, and separately complete ones
  // whose calls have not ended.
  size_t max_total_bytes = 1 << 30;
  size_t max_client_bytes = 256 << 20;  // part of it for one party's incomplete messages
  // Maps the authorization header to the caller's party ("": the client's address), on any thread.
  // nullopt: the message is not read, and the handler refuses the call.
  std::function<std::optional<std::string>(std::string_view authorization)> party;
  // Age (±10 %) at which a connection gets a GOAWAY; its running calls finish. Also the least
  // duration of a Drain while there are clients.
  Duration connection_age = std::chrono::seconds(10);
  uint64_t seed = 0;  // for request ids
};

// The loop and the handler must outlive the server.
class InferenceServer {
 public:
  InferenceServer(IoLoop* loop, const InferenceServerOptions& options, InferenceHandler* handler);
  ~InferenceServer();
  // ALREADY_EXISTS names the address and port in use and how to choose another.
  Status Start();
  // Starts accepting on an inherited socket, whose connections wait in its queue until then. No
  // effect for an own socket, which Start opens.
  void Accept();
  uint16_t port() const;
  // Calls with an incomplete message. Any thread.
  size_t reading() const;
  // The state that Health reports; initially NOT_SERVING. Cheap when unchanged.
  void SetServing(bool serving);

  // `done` runs on the loop after the last call. On an inherited socket no call fails: accepting
  // stops, and connections get a GOAWAY at connection_age. An own socket has no successor, so new
  // calls get UNAVAILABLE at once.
  void Drain(std::function<void()> done);
  // Ends the remaining calls (UNAVAILABLE) and stops; the loop may have ended before. Idempotent.
  void Shutdown(std::chrono::milliseconds limit);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
