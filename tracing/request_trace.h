// RequestTrace: the spans of one request's life, from what the client sent to the last word of its
// answer, in every process that had a part in it. Built by the router's side as the request goes
// on; what workers report is placed under the moment at which they were asked, on the router's
// clock.
//
// Bounded: kMaxSpans, then spans are counted and dropped. One thread (the router's); finished ones
// are only read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common.pb.h"
#include "common/clock.h"
#include "tracing/trace_context.h"

namespace aisp {

struct Span {
  SpanId id{};
  int parent = -1;  // index; -1: the root, whose parent is the caller's span
  std::string name;
  Instant start;
  Instant end = kNever;  // kNever: it still runs
  // Plain text; numbers as digits.
  std::vector<std::pair<std::string, std::string>> attributes;
  std::string error;  // "": none
};

class RequestTrace {
 public:
  static constexpr size_t kMaxSpans = 512;
  static constexpr int kNone = -1;
  static constexpr int kRoot = 0;

  // `unix_ns`: the wall clock at `now`, for exporters.
  RequestTrace(std::string request_id, const TraceContext* parent, Instant started, Instant now,
               int64_t unix_ns, SplitMix64* random);

  // Index of the new span, kNone when there is no room. Every other method takes kNone and then
  // does nothing.
  int Begin(std::string_view name, int parent, Instant start);
  void End(int span, Instant end);
  void Set(int span, std::string_view key, std::string value);
  void SetError(int span, std::string error);
  // What a worker reported of the work that it was asked for at `asked`, below `parent`; a chunk
  // goes below its "prefill".
  void AddReported(int parent, Instant asked,
                   const google::protobuf::RepeatedPtrField<v1::TraceSpan>& spans, uint32_t choice);
  // Ends the root and whatever is open.
  void Finish(Instant now);
  bool finished() const { return finished_; }

  const std::string& request_id() const { return request_id_; }
  const TraceId& trace_id() const { return trace_id_; }
  // All zeros: nobody above us.
  const SpanId& caller() const { return caller_; }
  const std::string& state() const { return state_; }
  bool sampled() const { return sampled_; }
  void set_sampled(bool sampled) { sampled_ = sampled; }
  std::string Traceparent() const;
  const std::vector<Span>& spans() const { return spans_; }
  uint32_t dropped_spans() const { return dropped_; }
  int64_t UnixNs(Instant at) const { return unix_ns_ + (at - unix_at_).count(); }

 private:
  const std::string request_id_;
  TraceId trace_id_{};
  SpanId caller_{};
  std::string state_;
  bool sampled_ = true;
  bool finished_ = false;
  SplitMix64 random_;
  Instant unix_at_;
  int64_t unix_ns_ = 0;
  std::vector<Span> spans_;
  uint32_t dropped_ = 0;
};

}  // namespace aisp
