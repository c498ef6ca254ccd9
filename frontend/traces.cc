#include "frontend/traces.h"

#include <chrono>
#include <utility>

namespace aisp {

Traces::Traces(const Options& options, const Clock* clock, uint64_t seed, Export to)
    : options_(options),
      clock_(clock),
      export_(std::move(to)),
      random_(seed),
      ring_(options.capacity) {}

std::shared_ptr<RequestTrace> Traces::Start(const std::string& request_id,
                                            const TraceHeaders& headers, Instant received) {
  auto parent = ParseTraceparent(headers.traceparent);
  if (parent) parent->state = UsableTracestate(headers.tracestate);
  const int64_t unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                              std::chrono::system_clock::now().time_since_epoch())
                              .count();
  auto trace = std::make_shared<RequestTrace>(request_id, parent ? &*parent : nullptr, received,
                                              clock_->Now(), unix_ns, &random_);
  if (!parent)
    trace->set_sampled(random_.Below(100) < static_cast<uint64_t>(options_.sample_percent));
  ring_.Add(trace);
  return trace;
}

void Traces::Finish(RequestTrace& trace) {
  if (trace.finished()) return;
  trace.Finish(clock_->Now());
  if (export_ && trace.sampled()) export_(trace);
}

}  // namespace aisp
