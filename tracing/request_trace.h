// RequestTrace: the spans of one request, from the client's first byte to the end of its answer,
// over all processes involved. The router's side builds it as the request proceeds. Workers report
// times relative to the moment at which they were asked; they are placed there on the router's
// clock.
//
// Bounded: beyond kMaxSpans spans are counted and dropped. One thread (the router's); finished
// traces are read-only.
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
  Instant end = kNever;  // kNever: still running
  // Values as text; numbers as digits.
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

  // Index of the new span, kNone when full. All other methods accept kNone and then do nothing.
  int Begin(std::string_view name, int parent, Instant start);
  void End(int span, Instant end);
  void Set(int span, std::string_view key, std::string value);
  void SetError(int span, std::string error);
  // Adds the spans of a worker that was asked at `asked`, below `parent`; a chunk goes below its
  // "prefill".
  void AddReported(int parent, Instant asked,
                   const google::protobuf::RepeatedPtrField<v1::TraceSpan>& spans, uint32_t choice);
  // Ends the root and all open spans.
  void Finish(Instant now);
  bool finished() const { return finished_; }

  const std::string& request_id() const { return request_id_; }
  const TraceId& trace_id() const { return trace_id_; }
  // All zeros: no caller.
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
