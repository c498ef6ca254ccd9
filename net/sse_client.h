// SseClient: very many streamed HTTP answers at a time on one IoLoop, by callbacks: the client of
// aisp-loadgen.
//
// Connections are kept alive and reused, the last used first. A reused one that the server had
// closed before it sent any byte of an answer is replaced once by a new one, as Go's net/http does;
// OnResent says so. Nothing else is repeated here.
//
// Loop thread only. The client must outlive its calls, a listener its call. Within any callback a
// call may be destroyed, which is how a request is abandoned: the connection is closed and the
// listener hears no more.
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
  // An answer of type text/event-stream: its events. Any other: pieces of its body.
  virtual void OnEvent(const SseEvent& event) = 0;
  virtual void OnBody(std::string_view piece) = 0;
  // Last. `sent` false: the request never left, because no connection came about. An error: the
  // connection broke, or what came was no HTTP.
  virtual void OnEnd(const Status& status, bool sent) = 0;

 protected:
  ~SseListener() = default;
};

// A POST under way; its destructor abandons it.
class SseCall {
 public:
  ~SseCall();
  SseCall(const SseCall&) = delete;
  SseCall& operator=(const SseCall&) = delete;

  struct Impl;  // of sse_client.cc

 private:
  friend class SseClient;
  SseCall() = default;
  std::unique_ptr<Impl> impl_;
};

class SseClient {
 public:
  // Looks `host` up, which blocks. With `tls` every connection is https.
  static Result<std::unique_ptr<SseClient>> Create(IoLoop* loop, const std::string& host,
                                                   uint16_t port,
                                                   std::shared_ptr<const TlsDialer> tls = nullptr);
  ~SseClient();

  // The listener is called from the loop, never inside this call.
  std::unique_ptr<SseCall> Post(SseRequest request, SseListener* listener);
  uint64_t connections_opened() const;

  struct Impl;  // of sse_client.cc

 private:
  explicit SseClient(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace aisp
