// RequestLog: one log line and one count for every finished client request, on any surface. The I/O
// thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/result.h"
#include "frontend/answer_sink.h"

namespace aisp {

// The client and the kind of request: for the log, the limits and the cache.
struct Caller {
  enum class Surface { kHttp, kGrpc };
  Surface surface = Surface::kHttp;
  std::string request_id;
  std::string tenant;
  std::string method;  // "POST"; "" for gRPC
  std::string path;    // "/v1/completions", "/aisp.v1.Inference/Generate"
  Instant received;
};

// How the request ended.
struct Outcome {
  int http_status = 200;
  Code code = Code::kOk;
  // For text requests; null: another kind, or it failed before it had tokens.
  const AnswerUsage* usage = nullptr;
  uint32_t choices = 0;
  std::optional<Duration> ttft;
  std::string trace_id;
  std::string error;
};

class RequestLog {
 public:
  RequestLog(Metrics* metrics, const Clock* clock) : metrics_(metrics), clock_(clock) {}

  // `quiet`: for probes and scrapers; logged at debug level and not counted.
  void Finished(const Caller& caller, const Outcome& outcome, bool quiet = false);

 private:
  void LogText(LogLevel level, const Caller& caller, const Outcome& outcome,
               const AnswerUsage& usage) const;
  Counter& CounterOf(const Caller& caller, const std::string& status);

  Metrics* const metrics_;
  const Clock* const clock_;
  std::map<std::pair<std::string, std::string>, Counter> counters_;
};

}  // namespace aisp
