#include "tracing/request_trace.h"

#include <algorithm>

namespace aisp {
namespace {

bool Within(int span, size_t count) { return span >= 0 && static_cast<size_t>(span) < count; }

}  // namespace

RequestTrace::RequestTrace(std::string request_id, const TraceContext* parent, Instant started,
                           Instant now, int64_t unix_ns, SplitMix64* random)
    : request_id_(std::move(request_id)),
      random_(random->Next()),
      unix_at_(now),
      unix_ns_(unix_ns) {
  if (parent != nullptr) {
    trace_id_ = parent->trace_id;
    caller_ = parent->span_id;
    sampled_ = parent->sampled;
    state_ = parent->state;
  } else {
    trace_id_ = NewTraceId(random);
  }
  Begin("request", kNone, started);
  Set(kRoot, "aisp.request_id", request_id_);
}

int RequestTrace::Begin(std::string_view name, int parent, Instant start) {
  if (spans_.size() >= kMaxSpans) {
    ++dropped_;
    return kNone;
  }
  Span span;
  span.id = NewSpanId(&random_);
  span.parent = parent;
  span.name = std::string(name);
  span.start = start;
  spans_.push_back(std::move(span));
  return static_cast<int>(spans_.size()) - 1;
}

void RequestTrace::End(int span, Instant end) {
  if (!Within(span, spans_.size())) return;
  Span& s = spans_[static_cast<size_t>(span)];
  if (s.end == kNever) s.end = std::max(s.start, end);
}

void RequestTrace::Set(int span, std::string_view key, std::string value) {
  if (!Within(span, spans_.size())) return;
  spans_[static_cast<size_t>(span)].attributes.emplace_back(std::string(key), std::move(value));
}

void RequestTrace::SetError(int span, std::string error) {
  if (Within(span, spans_.size())) spans_[static_cast<size_t>(span)].error = std::move(error);
}

void RequestTrace::AddReported(int parent, Instant asked,
                               const google::protobuf::RepeatedPtrField<v1::TraceSpan>& spans,
                               uint32_t choice) {
  int prefill = kNone;
  for (const v1::TraceSpan& reported : spans) {
    const bool chunk = reported.name() == "chunk" && prefill != kNone;
    const Instant start = asked + Duration(reported.start_ns());
    const int span = Begin(reported.name(), chunk ? prefill : parent, start);
    End(span, start + Duration(reported.duration_ns()));
    if (reported.name() == "prefill") prefill = span;
    Set(span, "aisp.worker", reported.worker());
    if (choice > 0) Set(span, "aisp.choice", std::to_string(choice));
    if (reported.tokens() > 0) Set(span, "aisp.tokens", std::to_string(reported.tokens()));
    if (reported.name() == "attempt") {
      SetError(span, reported.note());
    } else if (!reported.note().empty()) {
      Set(span, "aisp.note", reported.note());
    }
  }
}

void RequestTrace::Finish(Instant now) {
  for (size_t i = 0; i < spans_.size(); ++i) End(static_cast<int>(i), now);
  finished_ = true;
}

std::string RequestTrace::Traceparent() const {
  return FormatTraceparent(trace_id_, spans_[kRoot].id, sampled_);
}

}  // namespace aisp
