// What another process says of a request's times and work, cut to what can be: no number that
// overflows what is computed with it, no part longer than the whole, no text that fills a memory.
// Pure functions: any thread.
#pragma once

#include <cstdint>

#include "common.pb.h"
#include "common/clock.h"

namespace aisp {

// Within what whoever asked saw itself.
struct ReportBounds {
  Duration elapsed{};  // since it asked
  int64_t tokens = 0;  // of the sequence
};

using ReportedSpans = google::protobuf::RepeatedPtrField<v1::TraceSpan>;

int64_t BoundNs(const ReportBounds& bounds, int64_t ns);
uint32_t BoundCount(const ReportBounds& bounds, uint32_t tokens);
// The first so many as a request's worker has at most; the others go.
void BoundSpans(const ReportBounds& bounds, ReportedSpans* spans);
void BoundPull(const ReportBounds& bounds, v1::PrefixPull* pull);
void BoundTiming(const ReportBounds& bounds, v1::Timing* timing);

}  // namespace aisp
