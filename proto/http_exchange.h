// One HTTP request and its answer as the frontend sees them, without any I/O: net/http_server.h
// implements them over sockets, tests in memory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"

namespace aisp {

struct HttpRequest {
  std::string method;  // "GET", "POST", ...
  std::string path;    // without the query
  std::string query;
  std::string body;
  std::string peer;  // "127.0.0.1:51234"
  std::string id;    // of options.request_id; every answer carries it as x-request-id
  Instant received;  // when the last byte of the head was read
  std::vector<std::pair<std::string, std::string>> headers;
  // First value of a header by case-insensitive name, "" when absent.
  std::string_view Header(std::string_view name) const;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// One request and its answer. The handler keeps the shared_ptr as long as it has something to say;
// either Respond once, or BeginStream, Write..., End. Calls after the client is gone are ignored.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual void Respond(int status, HttpHeaders headers, std::string body) = 0;
  // Chunked transfer encoding; used for SSE.
  virtual void BeginStream(int status, HttpHeaders headers) = 0;
  // Queues bytes; never blocks, calls nobody back. Writes of one loop turn are gathered into one
  // send. When more than the bound is unsent the stream is cut: the disconnect handler is called
  // with `slow_reader`.
  virtual void Write(std::string_view bytes) = 0;
  virtual void End() = 0;
  virtual size_t unsent_bytes() const = 0;
  virtual bool alive() const = 0;
  enum class Gone { kClosed, kSlowReader, kShutdown };
  // Called once, on the loop and never from inside another call, when the client went away before
  // the answer was complete (Respond or End). Not called any more once the exchange is destroyed.
  // An exchange that is dropped without an answer is answered with 500; one that is dropped in
  // mid-stream is cut.
  virtual void OnDisconnect(std::function<void(Gone)> handler) = 0;
};

// What is known of a request by its head.
struct HttpIntake {
  // False: the handler answers without the body, so that a stranger's is not even read; a
  // connection on which one was announced ends with that answer.
  bool read_body = true;
  // Who is billed for the bytes (a tenant); "": the address that the request comes from.
  std::string party;
};

}  // namespace aisp
