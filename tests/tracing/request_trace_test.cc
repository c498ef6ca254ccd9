#include "tracing/request_trace.h"

#include <gtest/gtest.h>

#include "tracing/trace_ring.h"

namespace aisp {
namespace {

constexpr Instant At(int64_t ms) { return Instant{ms * 1'000'000}; }

class RequestTraceTest : public ::testing::Test {
 protected:
  RequestTrace Make(const std::string& id, const TraceContext* parent = nullptr) {
    return {id, parent, At(10), At(12), 1'700'000'000'000'000'000, &random_};
  }
  SplitMix64 random_{1};
};

v1::TraceSpan Reported(const std::string& name, int64_t start_ms, int64_t ms,
                       const std::string& worker) {
  v1::TraceSpan span;
  span.set_name(name);
  span.set_start_ns(start_ms * 1'000'000);
  span.set_duration_ns(ms * 1'000'000);
  span.set_worker(worker);
  return span;
}

TEST_F(RequestTraceTest, ACallerIsTheRootsParentAndItsTraceIsOurs) {
  const auto caller = ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00");
  const RequestTrace trace = Make("r", &*caller);
  EXPECT_EQ(trace.trace_id(), caller->trace_id);
  EXPECT_EQ(trace.caller(), caller->span_id);
  EXPECT_FALSE(trace.sampled());
  const auto ours = ParseTraceparent(trace.Traceparent());
  ASSERT_TRUE(ours);
  EXPECT_EQ(ours->trace_id, caller->trace_id);
  EXPECT_NE(ours->span_id, caller->span_id);
  EXPECT_FALSE(ours->sampled);
}

TEST_F(RequestTraceTest, WithoutACallerItIsANewTrace) {
  const RequestTrace a = Make("a");
  const RequestTrace b = Make("b");
  EXPECT_NE(a.trace_id(), b.trace_id());
  EXPECT_EQ(a.caller(), SpanId{});
  EXPECT_TRUE(a.sampled());
}

TEST_F(RequestTraceTest, WallClockTimesFollowFromTheMomentAtWhichItWasMade) {
  const RequestTrace trace = Make("r");
  EXPECT_EQ(trace.UnixNs(At(12)), 1'700'000'000'000'000'000);
  EXPECT_EQ(trace.UnixNs(At(10)), 1'700'000'000'000'000'000 - 2'000'000);
}

TEST_F(RequestTraceTest, WhatWorkersReportStandsWhereTheyWereAskedAndChunksBelowThePrefill) {
  RequestTrace trace = Make("r");
  google::protobuf::RepeatedPtrField<v1::TraceSpan> spans;
  *spans.Add() = Reported("queue", 0, 4, "d");
  *spans.Add() = Reported("prefill", 4, 20, "p");
  *spans.Add() = Reported("transfer", 24, 1, "d");
  *spans.Add() = Reported("chunk", 5, 9, "p");
  trace.AddReported(RequestTrace::kRoot, At(15), spans, 0);
  trace.Finish(At(100));
  ASSERT_EQ(trace.spans().size(), 5u);
  const Span& prefill = trace.spans()[2];
  EXPECT_EQ(prefill.name, "prefill");
  EXPECT_EQ(prefill.parent, RequestTrace::kRoot);
  EXPECT_EQ(prefill.start, At(19));
  EXPECT_EQ(prefill.end, At(39));
  const Span& chunk = trace.spans()[4];
  EXPECT_EQ(chunk.name, "chunk");
  EXPECT_EQ(chunk.parent, 2);
  EXPECT_EQ(chunk.start, At(20));
  EXPECT_EQ(chunk.end, At(29));
}

TEST_F(RequestTraceTest, FinishEndsWhatIsOpenAndNothingElse) {
  RequestTrace trace = Make("r");
  const int ended = trace.Begin("a", RequestTrace::kRoot, At(20));
  trace.End(ended, At(30));
  trace.Begin("b", RequestTrace::kRoot, At(20));
  EXPECT_EQ(trace.spans()[2].end, kNever);
  trace.Finish(At(50));
  EXPECT_EQ(trace.spans()[1].end, At(30));
  EXPECT_EQ(trace.spans()[2].end, At(50));
  EXPECT_EQ(trace.spans()[0].end, At(50));
}

TEST_F(RequestTraceTest, MoreSpansThanItKeepsAreCounted) {
  RequestTrace trace = Make("r");
  int last = 0;
  for (size_t i = 0; i < RequestTrace::kMaxSpans + 10; ++i)
    last = trace.Begin("s", RequestTrace::kRoot, At(20));
  EXPECT_EQ(last, RequestTrace::kNone);
  trace.Set(last, "key", "value");
  trace.End(last, At(30));
  trace.SetError(last, "error");
  EXPECT_EQ(trace.spans().size(), RequestTrace::kMaxSpans);
  EXPECT_EQ(trace.dropped_spans(), 11u);
}

TEST_F(RequestTraceTest, TheRingKeepsTheLastOnesAndFindsThemByEitherId) {
  TraceRing ring(2);
  std::vector<std::shared_ptr<RequestTrace>> traces;
  for (const char* id : {"a", "b", "c"}) {
    traces.push_back(std::make_shared<RequestTrace>(Make(id)));
    ring.Add(traces.back());
  }
  EXPECT_EQ(ring.Find("a"), nullptr);
  EXPECT_EQ(ring.Find("b"), traces[1].get());
  EXPECT_EQ(ring.Find(ToHex(traces[2]->trace_id())), traces[2].get());
  const auto newest = ring.Newest(5);
  ASSERT_EQ(newest.size(), 2u);
  EXPECT_EQ(newest[0]->request_id(), "c");
  TraceRing none(0);
  none.Add(traces[0]);
  EXPECT_EQ(none.Find("a"), nullptr);
}

}  // namespace
}  // namespace aisp
