// One HTTP request and its answer as the frontend sees them, without I/O: implemented by
// net/http_server.h over sockets, by tests in memory.
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
  std::string id;    // from options.request_id; answers carry it as x-request-id
  Instant received;  // when the last byte of the head was read
  std::vector<std::pair<std::string, std::string>> headers;
  // First value of a header, by case-insensitive name; "" when absent.
  std::string_view Header(std::string_view name) const;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// One request and its answer. The handler keeps the shared_ptr until it has answered: either
// Respond once, or BeginStream, Write..., End. Calls after the client is gone are ignored.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual void Respond(int status, HttpHeaders headers, std::string body) = 0;
  // Chunked transfer encoding; used for SSE.
  virtual void BeginStream(int status, HttpHeaders headers) = 0;
  // Queues bytes; never blocks or calls back. Writes in one turn of the loop are sent together.
  // Above the limit of unsent bytes the stream is cut: the disconnect handler gets `slow_reader`.
  virtual void Write(std::string_view bytes) = 0;
  virtual void End() = 0;
  virtual size_t unsent_bytes() const = 0;
  virtual bool alive() const = 0;
  enum class Gone { kClosed, kSlowReader, kShutdown };
  // The handler is called once, on the loop and never inside another call, if the client goes away
  // before the answer is complete (Respond or End), and not after the exchange was destroyed. An
  // exchange dropped without an answer is answered with 500; one dropped during a stream is cut.
  virtual void OnDisconnect(std::function<void(Gone)> handler) = 0;
};

// Decided from a request's head.
struct HttpIntake {
  // False: the handler answers without the body, which is not read. If a body was announced, the
  // connection ends with that answer.
  bool read_body = true;
  // The tenant to which the bytes count; "": the client's address.
  std::string party;
};

}  // namespace aisp
