// RequestLog: one line and one count for every finished request of a client, on any surface. The I/O thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/result.h"

namespace aisp {

// Who asks what: for the log, the limits and the cache.
struct Caller {
  enum class Surface { kHttp, kGrpc };
  Surface surface = Surface::kHttp;
  std::string request_id;
  std::string tenant;
  std::string method;  // "POST"; "" for gRPC
  std::string path;    // "/v1/completions", "/aisp.v1.Inference/Generate"
  Instant received;
};

// How it ended.
struct Outcome {
  int http_status = 200;
  Code code = Code::kOk;
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t completion_tokens = 0;
  std::optional<Duration> ttft;
  std::string route;
  std::string error;
};

class RequestLog {
 public:
  RequestLog(Metrics* metrics, const Clock* clock) : metrics_(metrics), clock_(clock) {}

  // `quiet`: for what probes and scrapers ask again and again; logged at debug, not counted.
  void Finished(const Caller& caller, const Outcome& outcome, bool quiet = false);

 private:
  Counter& CounterOf(const Caller& caller, const std::string& status);

  Metrics* const metrics_;
  const Clock* const clock_;
  std::map<std::pair<std::string, std::string>, Counter> counters_;
};

}  // namespace aisp
