// What the router tells workers of a request's time limits.
#include <gtest/gtest.h>

#include "common/random.h"
#include "router/answer_lengths.h"
#include "tests/router/router_harness.h"

namespace aisp {
namespace {

v1::Telemetry SomeSteps(RouterHarness& h) {
  v1::Telemetry t = h.ReadyTelemetry();
  for (uint32_t i = 0; i < 40; ++i) {
    v1::StepSample* sample = t.add_steps();
    if (i % 2 == 0) sample->set_prefill_tokens(100 + i);
    sample->set_prefill_context(uint64_t{sample->prefill_tokens()} * 60);
    sample->set_decode_rows(1 + i % 20);
    sample->set_duration_ns((sample->prefill_tokens() / 10 + 2) * 1'000'000ull);
  }
  return t;
}

RouterOptions Slo(int ttft_ms, int tpot_ms) {
  RouterOptions options;
  options.slo_ttft = std::chrono::milliseconds(ttft_ms);
  options.slo_tpot = std::chrono::milliseconds(tpot_ms);
  return options;
}

TEST(TokenLimits, AWorkerIsToldWhatARequestHasToKeepAndWhatItsStepsCost) {
  RouterHarness h(Slo(400, 20));
  const LinkId d = h.AddDecode("d");
  RecordingObserver first, usual, asks;
  ASSERT_TRUE(h.Submit(h.Request(100), &first));
  EXPECT_FALSE(h.Generates(d).back().has_limits()) << "nothing is known of its steps";
  h.Report(d, SomeSteps(h));
  ASSERT_TRUE(h.Submit(h.Request(100), &usual));
  const v1::TokenLimits limits = h.Generates(d).back().limits();
  EXPECT_EQ(limits.first_token_us(), 400'000u);
  EXPECT_EQ(limits.token_us(), 20'000u);
  EXPECT_GE(limits.answer_tokens(), 2u);
  EXPECT_GT(limits.cost().prompt_base() + limits.cost().per_token(), 0);
  EXPECT_GT(limits.cost().base(), 0);

  RouterRequest request = h.Request(200);
  request.objective = {3000, 100};
  ASSERT_TRUE(h.Submit(request, &asks));
  EXPECT_EQ(h.Generates(d).back().limits().first_token_us(), 3'000'000u);
  EXPECT_EQ(h.Generates(d).back().limits().token_us(), 100'000u);
}

TEST(TokenLimits, WhatIsCachedNeedNotBeComputed) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.Report(d, SomeSteps(h));
  RecordingObserver seen;
  const RouterRequest request = h.Request(100);
  h.Store(d, request.tokens, 1, /*snapshot=*/true);
  ASSERT_TRUE(h.Submit(request, &seen));
  EXPECT_EQ(h.Generates(d).back().limits().uncached_tokens(), 100u - 96);
}

TEST(TokenLimits, BatchWorkHasNone) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.Report(d, SomeSteps(h));
  RecordingObserver seen;
  RouterRequest request = h.Request(100);
  request.tenant.service_class = ServiceClass::kBatch;
  ASSERT_TRUE(h.Submit(request, &seen));
  h.Advance(std::chrono::milliseconds(50));
  ASSERT_EQ(h.Generates(d).size(), 1u);
  EXPECT_FALSE(h.Generates(d).back().has_limits());
}

TEST(TokenLimits, ShortAnswersAreAsShortAsOneInTwenty) {
  ShortAnswers answers;
  SplitMix64 random(1);
  for (int i = 0; i < 4000; ++i) answers.Add(static_cast<uint32_t>(100 + random.Below(1000)));
  EXPECT_GT(answers.tokens(), 105);
  EXPECT_LT(answers.tokens(), 220);
  for (int i = 0; i < 400; ++i) answers.Add(i % 5 == 0 ? 8 : 500);
  EXPECT_LT(answers.tokens(), 12) << "it follows a change";
  for (int i = 0; i < 100; ++i) answers.Add(1);
  EXPECT_GE(answers.tokens(), 2) << "what has no second token waits for none";
}

}  // namespace
}  // namespace aisp
