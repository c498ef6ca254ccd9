// Backend: sends a request and receives its stream, over HTTP (http_backend) or gRPC
// (grpc_backend). Loop thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "loadgen/prompts.h"
#include "loadgen/record.h"
#include "net/io_loop.h"

namespace aisp::loadgen {

// One chunk of a stream.
struct Delta {
  bool has_output = false;
  bool finished = false;  // of this choice
  std::string_view finish_reason = {};
  size_t choice = 0;
  std::string_view raw_text = {};
  bool escaped = false;  // raw_text contains JSON escapes
  std::span<const TokenId> token_ids = {};
};

struct UsageCounts {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
  int64_t cached_tokens = 0;
  ServerValues server = {};  // from usage.aisp
};

// How a request ended.
struct Ending {
  bool completed = false;   // with everything that a complete stream has
  std::string reason = {};  // otherwise: why not
  int http_status = 0;      // for gRPC the HTTP equivalent; 0: no answer
  bool may_retry = false;   // nothing was done yet: no connection, or 503
  std::optional<Duration> retry_after = {};
};

class BackendListener {
 public:
  virtual void OnResent() = 0;
  virtual void OnRoute(std::string_view route) = 0;
  virtual void OnDelta(const Delta& delta) = 0;
  virtual void OnUsage(const UsageCounts& usage) = 0;
  // The last call. Of all usage counts, the latest are valid.
  virtual void OnEnd(const Ending& ending) = 0;

 protected:
  ~BackendListener() = default;
};

// A running request. The destructor abandons it and silences the listener; not inside a callback.
class BackendCall {
 public:
  virtual ~BackendCall() = default;
};

class Backend {
 public:
  virtual ~Backend() = default;
  // The listener is called from the loop, never inside this call, and must outlive the call.
  virtual std::unique_ptr<BackendCall> Start(const WorkItem& item, BackendListener* listener) = 0;
};

}  // namespace aisp::loadgen
