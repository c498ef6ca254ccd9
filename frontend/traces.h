// Traces: begins and ends the trace of every request for text: who its caller is, whether it is
// exported, and the last ones for `aisp trace`. No I/O: what exports is a function. The router's
// thread.
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
    // Of the requests whose caller says nothing, how many are exported. A caller's own flag is
    // obeyed.
    int sample_percent = 100;
  };
  using Export = std::function<void(const RequestTrace&)>;

  // `to` may be null: nothing is exported.
  Traces(const Options& options, const Clock* clock, uint64_t seed, Export to);

  std::shared_ptr<RequestTrace> Start(const std::string& request_id, const TraceHeaders& headers,
                                      Instant received);
  // Ends it, exports it if it is sampled.
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
