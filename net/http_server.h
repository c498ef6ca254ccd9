// HttpServer: HTTP/1.1 keep-alive on Boost.Beast coroutines. Knows no OpenAI: it parses requests
// within bounds, hands each as an HttpExchange to one handler, and writes what the handler answers.
// Loop thread only, except where said.
//
// Bounds: header bytes (431), body bytes (413), connections and the bytes of all bodies together
// (503), the same two for one address without a key or one tenant (503), time to send a whole
// header and body (slow loris: 408), idle time, the outgoing buffer of a streaming answer and the
// time in which a client takes no byte (a slow reader is cut with a reset). Garbage, and what two
// programs could read in two ways (net/http_head.h), gets 400 and a close. Pipelined requests are
// answered one after the other.
//
// A client that ends its side of the connection before the answer is complete counts as gone, as it
// does for nginx and Go: the end of a program and a half-close look the same from here, and what is
// computed for nobody must stop at once. An answer that the handler has already completed is still
// sent, so `printf ... | nc -N` works for what answers at once. half_close_is_disconnect = false
// waits for a reset or a failing write instead.
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
  int listen_fd = -1;  // a listening socket to use instead of address and port; taken over by Start
  std::string port_flag = "--port N";  // what chooses another port, for errors
  TlsServerOptions tls;
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 16 << 20;
  // Of all requests that are read or answered, and, counted alike, of all whole answers; bytes
  // count as they arrive.
  size_t max_total_body_bytes = 1 << 30;
  // Of the bodies of one party that are not whole yet.
  size_t max_party_body_bytes = 256 << 20;
  size_t max_connections = 4096;
  // Of one address, without a running request and without a request for a tenant before.
  size_t max_waiting_per_address = 1024;
  size_t max_unsent_bytes = 1 << 20;
  Duration read_timeout = std::chrono::seconds(30);  // a whole request, from its first byte
  Duration idle_timeout = std::chrono::seconds(75);  // between requests
  // While draining, a connection between two requests is kept so long for a request that may be on
  // its way.
  Duration drain_idle = std::chrono::seconds(1);
  // Time in which a client for whom bytes wait must acknowledge min_taken_bytes; then again.
  Duration write_timeout = std::chrono::seconds(30);
  size_t min_taken_bytes = 1;
  bool half_close_is_disconnect = true;
  int send_buffer_bytes = 0;  // the kernel's, per connection; 0: as the kernel likes
  // Asked about each head before any of the body is awaited; without it every body is read and
  // billed to its address.
  std::function<HttpIntake(const HttpRequest& head)> intake;
  // Names a request, given its header x-request-id ("" when it has none). Called for what is
  // refused before the handler sees it, too. Without it requests have no name.
  std::function<std::string(std::string_view given)> request_id;
  // Body (JSON) of the answers that the server gives itself: 400, 408, 413, 431, 500, 503. Without
  // it they are plain text. `refused`: what is known of the request by then, "" the rest.
  struct Refused {
    std::string_view path, request_id;
  };
  std::function<std::string(const Refused& refused, int status, std::string_view message)>
      error_body;
};

// The loop must outlive the server. Exchanges may outlive both; they are then not alive().
class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<HttpExchange>)>;
  HttpServer(IoLoop* loop, HttpServerOptions options, Handler handler);
  ~HttpServer();
  // Binds and listens. The error (ALREADY_EXISTS) names address and port when it is taken and how
  // to choose another.
  Status Start();
  // The two halves of Start: between them clients wait in the queue of the socket.
  Status Listen();
  void Accept();
  uint16_t port() const;

  // Stops accepting; the accept queue is still served, unless the socket was handed over
  // (listen_fd). Answers that begin from now on end their connection, idle ones close after
  // drain_idle. `done` runs when the last connection has ended. The destructor cuts what is left
  // (Gone::kShutdown).
  void Drain(std::function<void()> done);
  size_t connections() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
