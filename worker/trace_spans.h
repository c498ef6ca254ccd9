// Spans of a request's life as a worker reports them (proto/common.proto, TraceSpan): durations
// counted from the moment at which this worker received the request, so that nobody compares
// clocks. Pure functions: any thread.
#pragma once

#include <string>

#include "common.pb.h"
#include "common/clock.h"
#include "engine/engine.h"

namespace aisp {

using TraceSpans = google::protobuf::RepeatedPtrField<v1::TraceSpan>;

// [start, end) counted from `received`, both cut to what lies after it. Null when it never started
// or ended. The pointer is valid until the next span is added.
v1::TraceSpan* AddSpan(std::string_view name, Instant received, Instant start, Instant end,
                       const std::string& worker, TraceSpans* out);

// One span "chunk" for every step that computed a part of the prompt here.
void AddChunks(Instant received, const SequenceTimes& times, const std::string& worker,
               TraceSpans* out);

}  // namespace aisp
