// OpenAI's /v1/completions and /v1/chat/completions, streamed. Loop thread only.
#pragma once

#include <memory>
#include <string>

#include "common/result.h"
#include "loadgen/backend.h"
#include "loadgen/chunk_reader.h"
#include "loadgen/options.h"
#include "net/tls_dialer.h"

namespace aisp::loadgen {

// `url`: where the server is. `model`: what requests ask for. `prompts` must outlive the backend.
Result<std::unique_ptr<Backend>> MakeHttpBackend(IoLoop* loop, const Options& options,
                                                 const Url& url, const std::string& model,
                                                 const PromptMaker* prompts,
                                                 std::shared_ptr<const TlsDialer> tls = nullptr);

// The body of one request, without a socket.
class RequestBodies {
 public:
  RequestBodies(const Options& options, const std::string& model);
  std::string Make(const WorkItem& item, const PromptMaker& prompts) const;
  // Choices of each request.
  size_t choices() const { return choices_; }

 private:
  bool chat_;
  bool sets_max_tokens_ = true;  // --extra-body does not
  size_t choices_ = 1;
  std::string tail_;  // the members that all requests share, up to the closing brace
};

// The data of events into deltas, and whether a stream has ended as it must; for tests without a
// server.
class StreamReader {
 public:
  StreamReader(BackendListener* listener, size_t choices) : listener_(listener), open_(choices) {}
  void OnData(std::string_view data);
  // Why the stream has failed or is not complete; "" when it has come to its end.
  std::string Problem() const;

 private:
  BackendListener* listener_;
  Chunk chunk_;
  size_t open_;  // choices without a finish reason
  bool done_ = false;
  std::string error_;
};

}  // namespace aisp::loadgen
