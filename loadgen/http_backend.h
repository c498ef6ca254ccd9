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

// `url`: the server. `model`: sent in requests. `prompts` must outlive the backend.
Result<std::unique_ptr<Backend>> MakeHttpBackend(IoLoop* loop, const Options& options,
                                                 const Url& url, const std::string& model,
                                                 const PromptMaker* prompts,
                                                 std::shared_ptr<const TlsDialer> tls = nullptr);

// Builds the bodies of requests, without a socket.
class RequestBodies {
 public:
  RequestBodies(const Options& options, const std::string& model);
  std::string Make(const WorkItem& item, const PromptMaker& prompts) const;
  // Choices per request.
  size_t choices() const { return choices_; }

 private:
  bool chat_;
  bool sets_max_tokens_ = true;  // false if --extra-body sets it
  size_t choices_ = 1;
  std::string tail_;  // members common to all requests, up to the closing brace
};

// Parses events into deltas and checks that a stream ends properly; for tests without a server.
class StreamReader {
 public:
  StreamReader(BackendListener* listener, size_t choices) : listener_(listener), open_(choices) {}
  void OnData(std::string_view data);
  // Why the stream failed or is incomplete; "" when it has ended.
  std::string Problem() const;

 private:
  BackendListener* listener_;
  Chunk chunk_;
  size_t open_;  // choices without a finish reason
  bool done_ = false;
  std::string error_;
};

}  // namespace aisp::loadgen
