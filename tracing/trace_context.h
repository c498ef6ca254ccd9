// W3C Trace Context (https://www.w3.org/TR/trace-context/): the trace that a request's headers
// name. Pure functions: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/random.h"

namespace aisp {

using TraceId = std::array<uint8_t, 16>;
using SpanId = std::array<uint8_t, 8>;

struct TraceContext {
  TraceId trace_id{};
  SpanId span_id{};  // the caller's span, parent of ours
  bool sampled = true;
  std::string state;  // tracestate, passed on unchanged
};

// Parses a `traceparent` header. nullopt when absent or malformed (wrong length, capital letters,
// all zeros, version ff): the standard then requires a new trace rather than an error. Of a higher
// version the first four fields are read.
std::optional<TraceContext> ParseTraceparent(std::string_view header);
// "00-<trace id>-<span id>-01"
std::string FormatTraceparent(const TraceId& trace, const SpanId& span, bool sampled);
// `tracestate` if it may be passed on (at most 512 printable bytes), else "".
std::string UsableTracestate(std::string_view header);

TraceId NewTraceId(SplitMix64* random);
SpanId NewSpanId(SplitMix64* random);

std::string ToHex(const TraceId& id);
std::string ToHex(const SpanId& id);

}  // namespace aisp
