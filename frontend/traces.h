// Traces: begins and ends the trace of every text request, decides whether it is exported, and
// keeps the last ones for `aisp trace`. No I/O: exporting is a callback. The router's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/random.h"
#include "tracing/request_trace.h"
#include "tracing/trace_ring.h"

namespace aisp {

struct TraceHeaders {
  std::string traceparent;
  std::string tracestate;
};

class Traces {
 public:
  struct Options {
    size_t capacity = 1024;  // requests kept; 0: none
    // Percentage of exported requests among those without a sampled flag of their own.
    int sample_percent = 100;
  };
  using Export = std::function<void(const RequestTrace&)>;

  // `to` null: nothing is exported.
  Traces(const Options& options, const Clock* clock, uint64_t seed, Export to);

  std::shared_ptr<RequestTrace> Start(const std::string& request_id, const TraceHeaders& headers,
                                      Instant received);
  // Ends the trace and exports it if it is sampled.
  void Finish(RequestTrace& trace);
  const TraceRing& ring() const { return ring_; }

 private:
  const Options options_;
  const Clock* const clock_;
  const Export export_;
  SplitMix64 random_;
  TraceRing ring_;
};

}  // namespace aisp
