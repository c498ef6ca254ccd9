// SseClient: very many concurrent streamed HTTP answers on one IoLoop, by callbacks; used by
// aisp-loadgen.
//
// Connections are kept alive and reused, last used first. If the server closed a reused one before
// it sent any byte of an answer, the request is resent once on a new one, as Go's net/http does;
// OnResent reports it. Nothing else is retried.
//
// Loop thread only. The client must outlive its calls, and a listener its call. A call may be
// destroyed in any callback, which abandons the request: the connection is closed and the listener
// is not called again.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "net/http_server.h"
#include "net/io_loop.h"
#include "net/sse_reader.h"
#include "net/tls_dialer.h"

namespace aisp {

struct SseRequest {
  std::string target;  // "/v1/completions"
  HttpHeaders headers;
  std::string body;
};

class SseListener {
 public:
  virtual void OnResent() = 0;
  virtual void OnHead(int status, const HttpHeaders& headers) = 0;
  // For text/event-stream: its events. Otherwise: pieces of the body.
  virtual void OnEvent(const SseEvent& event) = 0;
  virtual void OnBody(std::string_view piece) = 0;
  // The last call. `sent` false: no connection, the request was not sent. An error: the connection
  // broke or the answer was not HTTP.
  virtual void OnEnd(const Status& status, bool sent) = 0;

 protected:
  ~SseListener() = default;
};

// A running POST; the destructor abandons it.
class SseCall {
 public:
  ~SseCall();
  SseCall(const SseCall&) = delete;
  SseCall& operator=(const SseCall&) = delete;

  struct Impl;  // in sse_client.cc

 private:
  friend class SseClient;
  SseCall() = default;
  std::unique_ptr<Impl> impl_;
};

class SseClient {
 public:
  // Resolves `host`, which blocks. With `tls` every connection is https.
  static Result<std::unique_ptr<SseClient>> Create(IoLoop* loop, const std::string& host,
                                                   uint16_t port,
                                                   std::shared_ptr<const TlsDialer> tls = nullptr);
  ~SseClient();

  // The listener is called from the loop, never inside this call.
  std::unique_ptr<SseCall> Post(SseRequest request, SseListener* listener);
  uint64_t connections_opened() const;

  struct Impl;  // in sse_client.cc

 private:
  explicit SseClient(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
