#include "worker/trace_spans.h"

#include <algorithm>

namespace aisp {

v1::TraceSpan* AddSpan(std::string_view name, Instant received, Instant start, Instant end,
                       const std::string& worker, TraceSpans* out) {
  if (start == kNever || end == kNever) return nullptr;
  const Instant from = std::max(received, start);
  v1::TraceSpan* span = out->Add();
  span->set_name(std::string(name));
  span->set_start_ns((from - received).count());
  span->set_duration_ns(std::max<int64_t>(0, (end - from).count()));
  span->set_worker(worker);
  return span;
}

void AddChunks(Instant received, const SequenceTimes& times, const std::string& worker,
               TraceSpans* out) {
  for (const PrefillChunk& chunk : times.chunks) {
    v1::TraceSpan* span = AddSpan("chunk", received, chunk.launched, chunk.done, worker, out);
    if (span != nullptr) span->set_tokens(static_cast<uint32_t>(chunk.tokens));
  }
}

}  // namespace aisp
