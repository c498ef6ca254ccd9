// HttpClient: a small blocking HTTP/1.1 client on one kept-alive connection, for the demo, health
// checks and tests. Not for load tests: aisp-loadgen has its own. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "net/http_server.h"
#include "net/sse_reader.h"
#include "net/tls_dialer.h"

namespace aisp {

struct HttpAnswer {
  int status = 0;
  HttpHeaders headers;
  std::string body;
  // First value of a header, by case-insensitive name; "" when absent.
  std::string_view Header(std::string_view name) const;
};

class HttpClient {
 public:
  // `timeout` bounds each wait: connecting, sending, and the next bytes of an answer. `tls`: https.
  static Result<HttpClient> Connect(const std::string& address, uint16_t port, Duration timeout,
                                    std::shared_ptr<const TlsDialer> tls = nullptr);
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&& other) noexcept;
  ~HttpClient();

  // Sends one request and reads the whole answer. Sets Host and Content-Length. UNAVAILABLE: the
  // connection broke; DEADLINE_EXCEEDED: the timeout passed. After an error the client is unusable.
  Result<HttpAnswer> Request(std::string_view method, std::string_view target,
                             std::string_view body = {}, const HttpHeaders& headers = {});

  // As Request, up to the answer's head; read the body with ReadSome, ReadRest or NextEvent.
  Result<HttpAnswer> Open(std::string_view method, std::string_view target,
                          std::string_view body = {}, const HttpHeaders& headers = {});
  // The next piece of the body, never empty; nullopt at the end.
  Result<std::optional<std::string>> ReadSome();
  // RESOURCE_EXHAUSTED when the body is longer than kMaxBody.
  Result<std::string> ReadRest();
  static constexpr size_t kMaxBody = 256u << 20;
  // The next event of an SSE body, without comments; nullopt at the end of the body.
  Result<std::optional<SseEvent>> NextEvent();

  // For tests of the protocol: sends raw bytes; reads until the server closes or `timeout` passes.
  Status SendRaw(std::string_view bytes);
  Result<std::string> ReceiveRaw();
  int fd() const;
  void Close();

 private:
  struct Impl;
  explicit HttpClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
