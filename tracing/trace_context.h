// W3C Trace Context (https://www.w3.org/TR/trace-context/): who a request belongs to, as its
// headers say. Pure functions: any thread.
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
  SpanId span_id{};  // the caller's span; ours hang below it
  bool sampled = true;
  std::string state;  // tracestate, passed on as it came
};

// A `traceparent` header. Empty when it is absent or malformed (wrong length, capital letters, all
// zeros, version ff): the standard then asks for a new trace, not for an error. A higher version is
// read by its first four fields.
std::optional<TraceContext> ParseTraceparent(std::string_view header);
// "00-<trace id>-<span id>-01"
std::string FormatTraceparent(const TraceId& trace, const SpanId& span, bool sampled);
// `tracestate`, when it may be passed on: at most 512 printable bytes; else "".
std::string UsableTracestate(std::string_view header);

TraceId NewTraceId(SplitMix64* random);
SpanId NewSpanId(SplitMix64* random);

std::string ToHex(const TraceId& id);
std::string ToHex(const SpanId& id);

}  // namespace aisp
