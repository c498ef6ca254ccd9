#include "proto/reported_timing.h"

#include <algorithm>
#include <string>

namespace aisp {
namespace {

constexpr int kMaxSpans = 128;     // twice an engine's maximum of chunks, plus the spans around
                                   // them
constexpr size_t kMaxText = 1024;  // of a name, or of why an attempt failed

void BoundText(std::string* text) {
  if (text->size() <= kMaxText) return;
  size_t end = kMaxText;
  while (end > 0 && (static_cast<unsigned char>((*text)[end]) & 0xC0) == 0x80) --end;
  text->resize(end);
}

}  // namespace

int64_t BoundNs(const ReportBounds& bounds, int64_t ns) {
  return std::clamp<int64_t>(ns, 0, std::max<int64_t>(0, bounds.elapsed.count()));
}

uint32_t BoundCount(const ReportBounds& bounds, uint32_t tokens) {
  return static_cast<uint32_t>(std::clamp<int64_t>(tokens, 0, std::max<int64_t>(0, bounds.tokens)));
}

void BoundSpans(const ReportBounds& bounds, ReportedSpans* spans) {
  if (spans->size() > kMaxSpans) spans->DeleteSubrange(kMaxSpans, spans->size() - kMaxSpans);
  for (v1::TraceSpan& span : *spans) {
    span.set_start_ns(BoundNs(bounds, span.start_ns()));
    span.set_duration_ns(std::min(BoundNs(bounds, span.duration_ns()),
                                  BoundNs(bounds, INT64_MAX) - span.start_ns()));
    span.set_tokens(BoundCount(bounds, span.tokens()));
    BoundText(span.mutable_name());
    BoundText(span.mutable_worker());
    BoundText(span.mutable_note());
  }
}

void BoundPull(const ReportBounds& bounds, v1::PrefixPull* pull) {
  pull->set_tokens(BoundCount(bounds, pull->tokens()));
  pull->set_duration_ns(BoundNs(bounds, pull->duration_ns()));
  pull->set_promotion_ns(std::min(BoundNs(bounds, pull->promotion_ns()), pull->duration_ns()));
  BoundText(pull->mutable_holder());
  BoundText(pull->mutable_transport());
}

void BoundTiming(const ReportBounds& bounds, v1::Timing* timing) {
  timing->set_queue_ns(BoundNs(bounds, timing->queue_ns()));
  timing->set_prefill_ns(BoundNs(bounds, timing->prefill_ns()));
  timing->set_transfer_ns(BoundNs(bounds, timing->transfer_ns()));
  timing->set_transfer_total_ns(BoundNs(bounds, timing->transfer_total_ns()));
  timing->set_first_decode_ns(BoundNs(bounds, timing->first_decode_ns()));
  timing->set_cached_tokens(BoundCount(bounds, timing->cached_tokens()));
  timing->set_kv_blocks_moved(BoundCount(bounds, timing->kv_blocks_moved()));
  BoundText(timing->mutable_kv_transport());
  BoundText(timing->mutable_prefill_worker());
  BoundText(timing->mutable_fallback());
  BoundSpans(bounds, timing->mutable_spans());
  if (timing->has_pull()) BoundPull(bounds, timing->mutable_pull());
}

}  // namespace aisp
