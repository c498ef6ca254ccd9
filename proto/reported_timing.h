// Clamps times and spans reported by another process to plausible values: no overflow, no part
// longer than the whole, no unbounded text. Pure functions: any thread.
#pragma once

#include <cstdint>

#include "common.pb.h"
#include "common/clock.h"

namespace aisp {

// What the asking side itself has observed.
struct ReportBounds {
  Duration elapsed{};  // since it asked
  int64_t tokens = 0;  // of the sequence
};

using ReportedSpans = google::protobuf::RepeatedPtrField<v1::TraceSpan>;

int64_t BoundNs(const ReportBounds& bounds, int64_t ns);
uint32_t BoundCount(const ReportBounds& bounds, uint32_t tokens);
// Keeps the maximum number of spans that a worker reports, and drops the rest.
void BoundSpans(const ReportBounds& bounds, ReportedSpans* spans);
void BoundPull(const ReportBounds& bounds, v1::PrefixPull* pull);
void BoundTiming(const ReportBounds& bounds, v1::Timing* timing);

}  // namespace aisp
