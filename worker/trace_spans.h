// Spans of a request as a worker reports them (proto/common.proto, TraceSpan): times relative to
// when this worker received the request, so that clocks need not agree. Pure functions: any thread.
#pragma once

#include <string>

#include "common.pb.h"
#include "common/clock.h"
#include "engine/engine.h"

namespace aisp {

using TraceSpans = google::protobuf::RepeatedPtrField<v1::TraceSpan>;

// [start, end) relative to `received`, both clamped to be non-negative. Null if it never started or
// ended. The pointer is valid until the next span is added.
v1::TraceSpan* AddSpan(std::string_view name, Instant received, Instant start, Instant end,
                       const std::string& worker, TraceSpans* out);

// One span "chunk" per step that computed a part of the prompt here.
void AddChunks(Instant received, const SequenceTimes& times, const std::string& worker,
               TraceSpans* out);

}  // namespace aisp
