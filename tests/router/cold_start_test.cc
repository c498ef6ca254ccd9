// A worker that has just registered has no history: it must be neither flooded nor left idle.
#include <gtest/gtest.h>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

// Four rows run; decode steps take 5 ms, steps with prefill 5 ms plus 0.1 ms per token.
v1::Telemetry BusySteps(RouterHarness& h) {
  v1::Telemetry t = h.ReadyTelemetry();
  t.set_running(4);
  for (uint32_t i = 0; i < 160; ++i) {
    v1::StepSample* sample = t.add_steps();
    const uint32_t tokens = i % 2 == 0 ? 0 : 100 + 2 * i;
    sample->set_prefill_tokens(tokens);
    sample->set_prefill_context(uint64_t{tokens} * (tokens + 1) / 2);
    sample->set_decode_rows(1 + i % 4);
    sample->set_decode_context(uint64_t{300} * (1 + i % 4));
    sample->set_duration_ns(5'000'000 + tokens * 100'000ull);
  }
  return t;
}

RouterRequest Fresh(RouterHarness& h, int number) {
  RouterRequest request = h.Request(400, /*max_new_tokens=*/64);
  std::vector<TokenId> tokens(400);
  for (size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<TokenId>((static_cast<size_t>(number) * 37 + i * 11) % 250);
  tokens[0] = static_cast<TokenId>(number);
  request.tokens = std::move(tokens);
  return request;
}

// Places `requests` requests at once; returns the number sent on each link.
std::vector<size_t> Placed(RouterHarness& h, const std::vector<LinkId>& links, int requests) {
  std::vector<RecordingObserver> observers(static_cast<size_t>(requests));
  for (int i = 0; i < requests; ++i) {
    EXPECT_TRUE(h.Submit(Fresh(h, i), &observers[static_cast<size_t>(i)]));
    h.Advance(std::chrono::milliseconds(1));
  }
  std::vector<size_t> counts;
  for (const LinkId link : links) counts.push_back(h.Generates(link).size());
  for (const LinkId link : links)
    h.router.OnLinkDown(link, {Code::kUnavailable, "the test is over"});
  h.Advance(std::chrono::hours(1));  // nothing waits any more
  return counts;
}

TEST(ColdStart, AWorkerWithoutHistoryIsNeitherFloodedNorStarved) {
  RouterHarness h;
  const LinkId a = h.AddDecode("a"), b = h.AddDecode("b");
  h.Report(a, BusySteps(h));
  h.Report(b, BusySteps(h));
  const LinkId fresh = h.AddDecode("fresh");
  const std::vector<size_t> counts = Placed(h, {a, b, fresh}, 30);
  EXPECT_EQ(counts[0] + counts[1] + counts[2], 30u);
  // It is idle, so it may get more than its third; requests sent to it count at once.
  EXPECT_GE(counts[2], 8u);
  EXPECT_LE(counts[2], 18u);
}

TEST(ColdStart, WorkersOfWhichNobodyKnowsAnythingShareABurst) {
  RouterHarness h;
  const std::vector<LinkId> links = {h.AddDecode("a"), h.AddDecode("b"), h.AddDecode("c")};
  for (const size_t count : Placed(h, links, 30)) {
    EXPECT_GE(count, 7u);
    EXPECT_LE(count, 13u);
  }
}

// It reported four long steps: a burst must not go to it only because little is known.
TEST(ColdStart, WhatAFewStepsSayCountsWhereThereIsWork) {
  RouterHarness h;
  const LinkId d = h.AddDecode("a");
  v1::Telemetry first = h.ReadyTelemetry();
  first.set_running(2);
  first.set_queued_prefill_tokens(8000);
  first.set_queued_prefill_context(8000 * 2000);
  for (int i = 0; i < 4; ++i) {
    v1::StepSample* sample = first.add_steps();
    sample->set_prefill_tokens(512);
    sample->set_prefill_context(512 * 513 / 2);
    sample->set_duration_ns(500'000'000);
  }
  h.Report(d, first);
  RecordingObserver refused, taken;
  RouterRequest late = Fresh(h, 1);
  late.objective = {1000, 0};
  EXPECT_FALSE(h.Submit(std::move(late), &refused));
  RouterRequest patient = Fresh(h, 2);
  patient.objective = {60'000, 0};
  EXPECT_TRUE(h.Submit(std::move(patient), &taken));
}

// The same steps on an idle worker: it is tried.
TEST(ColdStart, AWorkerWithoutWorkIsTriedHoweverSlowItsFirstStepsWere) {
  RouterHarness h;
  const LinkId d = h.AddDecode("a");
  v1::Telemetry first = h.ReadyTelemetry();
  for (int i = 0; i < 4; ++i) {
    v1::StepSample* sample = first.add_steps();
    sample->set_prefill_tokens(512);
    sample->set_prefill_context(512 * 513 / 2);
    sample->set_duration_ns(5'000'000'000);
  }
  h.Report(d, first);
  RecordingObserver taken;
  RouterRequest request = Fresh(h, 1);
  request.objective = {1000, 0};
  EXPECT_TRUE(h.Submit(std::move(request), &taken));
}

}  // namespace
}  // namespace aisp
