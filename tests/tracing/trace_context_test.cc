#include "tracing/trace_context.h"

#include <gtest/gtest.h>

#include <set>

namespace aisp {
namespace {

constexpr std::string_view kGood = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(Traceparent, IsReadAndWrittenBack) {
  const auto context = ParseTraceparent(kGood);
  ASSERT_TRUE(context);
  EXPECT_EQ(ToHex(context->trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(ToHex(context->span_id), "00f067aa0ba902b7");
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(FormatTraceparent(context->trace_id, context->span_id, true), kGood);
}

TEST(Traceparent, OnlyTheLowestFlagSaysSampled) {
  std::string text(kGood);
  text.replace(53, 2, "00");
  EXPECT_FALSE(ParseTraceparent(text)->sampled);
  text.replace(53, 2, "fe");
  EXPECT_FALSE(ParseTraceparent(text)->sampled);
  text.replace(53, 2, "03");
  EXPECT_TRUE(ParseTraceparent(text)->sampled);
}

TEST(Traceparent, WhatIsMalformedCountsAsAbsent) {
  const std::string good(kGood);
  for (const std::string& bad :
       {std::string(), std::string("garbage"), good.substr(0, 54), good + "0", good + "-more",
        "ff" + good.substr(2), "0g" + good.substr(2),
        std::string("00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"),
        std::string("00-00000000000000000000000000000000-00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"),
        std::string("00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        std::string("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x"),
        std::string(55, '\xff'), std::string(55, '\0')}) {
    EXPECT_FALSE(ParseTraceparent(bad)) << bad;
  }
}

TEST(Traceparent, OfALaterVersionIsReadByItsFirstFields) {
  const std::string later = "cc" + std::string(kGood.substr(2));
  EXPECT_TRUE(ParseTraceparent(later));
  EXPECT_TRUE(ParseTraceparent(later + "-what-the-future-brings"));
  EXPECT_FALSE(ParseTraceparent(later + "x"));
}

TEST(Tracestate, IsPassedOnOnlyWhenItFitsInAHeader) {
  EXPECT_EQ(UsableTracestate("vendor=1,other=2"), "vendor=1,other=2");
  EXPECT_EQ(UsableTracestate("a=\n"), "");
  EXPECT_EQ(UsableTracestate(std::string(513, 'a')), "");
}

TEST(TraceIds, AreNewEachTimeAndNeverZero) {
  SplitMix64 random(0);
  std::set<TraceId> traces;
  std::set<SpanId> spans;
  for (int i = 0; i < 1000; ++i) {
    traces.insert(NewTraceId(&random));
    spans.insert(NewSpanId(&random));
  }
  EXPECT_EQ(traces.size(), 1000u);
  EXPECT_EQ(spans.size(), 1000u);
  EXPECT_EQ(traces.count(TraceId{}), 0u);
  EXPECT_EQ(spans.count(SpanId{}), 0u);
}

}  // namespace
}  // namespace aisp
