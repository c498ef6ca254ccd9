// HttpServer: HTTP/1.1 keep-alive on Boost.Beast coroutines. Independent of the OpenAI API: it
// parses requests within bounds, passes each as an HttpExchange to one handler, and writes the
// handler's answers. Loop thread only, except where noted.
//
// Bounds: header bytes (431), body bytes (413), connections and the bytes of all bodies (503), both
// also per address without a key or per tenant (503), time to send a whole header and body (slow
// loris: 408), idle time, the output buffer of a stream, and the time in which a client takes no
// byte (a slow reader is reset). Invalid requests, and those that two programs could read
// differently (net/http_head.h), get 400 and a close. Pipelined requests are answered in order.
//
// A client that closes its sending side before the answer is complete counts as gone, as in nginx
// and Go: an exit and a half-close look the same here, and work for nobody must stop at once. A
// completed answer is still sent, so `printf ... | nc -N` works for immediate answers. With
// half_close_is_disconnect = false only a reset or a failed write counts.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "net/io_loop.h"
#include "net/tls_options.h"
#include "proto/http_exchange.h"

namespace aisp {

struct HttpServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;   // 0: a free one, see port()
  int listen_fd = -1;  // listening socket to use instead of address and port; owned by Start
  std::string port_flag = "--port N";  // flag that selects another port, for errors
  TlsServerOptions tls;
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 16 << 20;
  // Limit for the bodies of all requests being read or answered, and separately for all whole
  // answers. Bytes count as they arrive.
  size_t max_total_body_bytes = 1 << 30;
  // Limit for one party's incomplete bodies.
  size_t max_party_body_bytes = 256 << 20;
  size_t max_connections = 4096;
  // Connections of one address without a running request that never had an authenticated one.
  size_t max_waiting_per_address = 1024;
  size_t max_unsent_bytes = 1 << 20;
  Duration read_timeout = std::chrono::seconds(30);  // for a whole request, from its first byte
  Duration idle_timeout = std::chrono::seconds(75);  // between requests
  // While draining, how long an idle connection is kept for a request that may be in transit.
  Duration drain_idle = std::chrono::seconds(1);
  // A client with pending bytes must acknowledge min_taken_bytes in each such period.
  Duration write_timeout = std::chrono::seconds(30);
  size_t min_taken_bytes = 1;
  bool half_close_is_disconnect = true;
  int send_buffer_bytes = 0;  // the kernel's buffer per connection; 0: its default
  // Called with each head before any of its body is read. If empty, all bodies are read and counted
  // towards their address.
  std::function<HttpIntake(const HttpRequest& head)> intake;
  // Returns the request's id, given the header x-request-id ("" if absent). Also called for
  // requests refused before the handler sees them. If empty, requests have no id.
  std::function<std::string(std::string_view given)> request_id;
  // Writes the JSON body of the server's own answers: 400, 408, 413, 431, 500, 503; if empty, they
  // are plain text. `refused`: what is known of the request, "" for the rest.
  struct Refused {
    std::string_view path, request_id;
  };
  std::function<std::string(const Refused& refused, int status, std::string_view message)>
      error_body;
};

// The loop must outlive the server. Exchanges may outlive both and are then not alive().
class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;
  HttpServer(IoLoop* loop, HttpServerOptions options, Handler handler);
  ~HttpServer();
  // Binds and listens. ALREADY_EXISTS names the address and port in use and how to choose another.
  Status Start();
  // The two halves of Start; connections in between wait in the socket's queue.
  Status Listen();
  void Accept();
  uint16_t port() const;

  // Stops accepting, but serves the accept queue unless the socket is shared (listen_fd). New
  // answers end their connection; idle connections close after drain_idle. `done` runs when the
  // last connection has ended. The destructor cuts the rest (Gone::kShutdown).
  void Drain(std::function<void()> done);
  size_t connections() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
