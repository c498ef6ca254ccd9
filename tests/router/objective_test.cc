// Limits that requests ask for, and what the router learns from finished requests.
#include <gtest/gtest.h>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

// A worker whose prefill takes a millisecond per token.
v1::Telemetry SlowSteps(RouterHarness& h) {
  v1::Telemetry t = h.ReadyTelemetry();
  for (uint32_t i = 0; i < 40; ++i) {
    v1::StepSample* sample = t.add_steps();
    const uint32_t tokens = 10 + 5 * i;
    sample->set_prefill_tokens(tokens);
    sample->set_prefill_context(uint64_t{tokens} * (tokens + 1) / 2);
    sample->set_duration_ns(tokens * 1'000'000ull);
  }
  return t;
}

TEST(Objective, ARequestThatNobodyCanServeInTimeIsRefusedAtOnceWithBothTimes) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.Report(d, SlowSteps(h));
  RecordingObserver observer;
  RouterRequest request = h.Request(200);
  request.objective.ttft_ms = 50;
  const auto refused = h.Submit(request, &observer);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("against 50"), std::string::npos)
      << refused.error().message;
  EXPECT_GT(h.retry_after, Duration{});
  EXPECT_TRUE(h.Generates(d).empty());
  EXPECT_TRUE(h.HasMetric("aisp_requests_rejected_total{model=\"story\",reason=\"objective\"", "1"))
      << h.metrics.Render();

  request.objective.ttft_ms = 5000;
  EXPECT_TRUE(h.Submit(request, &observer));
  EXPECT_EQ(h.Generates(d).size(), 1u);
}

// A limit just above the prediction leaves no margin for the usual error.
TEST(Objective, WhoIsRefusedForTheUsualErrorIsToldOfIt) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.Report(d, SlowSteps(h));
  RecordingObserver observer;
  ASSERT_TRUE(h.Submit(h.Request(200), &observer));
  const double predicted_ms = observer.routes.back().predicted_ttft_ms;
  h.Advance(std::chrono::milliseconds(200));
  h.Tokens(d, h.Generates(d).back().request_id(), 200, {1}, v1::FINISH_LENGTH);
  h.Report(d, h.ReadyTelemetry());
  RouterRequest request = h.Request(200);
  request.objective.ttft_ms = predicted_ms + 1;
  const auto refused = h.Submit(request, &observer);
  ASSERT_FALSE(refused);
  const std::string& message = refused.error().message;
  const size_t at = message.find("up to ");
  ASSERT_NE(at, std::string::npos) << message;
  EXPECT_GT(std::stod(message.substr(at + 6)), request.objective.ttft_ms) << message;
  EXPECT_LE(std::stod(message.substr(message.find("TTFT ") + 5)), request.objective.ttft_ms);
}

TEST(Objective, WhatIsNotAskedForRefusesNobody) {
  RouterOptions options;
  options.slo_ttft = std::chrono::milliseconds(50);
  RouterHarness h(options);
  const LinkId d = h.AddDecode("d");
  h.Report(d, SlowSteps(h));
  RecordingObserver observer;
  RouterRequest request = h.Request(200);
  request.objective.tpot_ms = 1000;
  EXPECT_TRUE(h.Submit(request, &observer)) << "its TTFT is the router's wish, not the client's";
  request.objective.ttft_ms = 50;
  EXPECT_FALSE(h.Submit(request, &observer));
}

TEST(Objective, NothingIsRefusedOnAGuess) {
  RouterHarness h;
  h.AddDecode("d");
  RecordingObserver observer;
  RouterRequest request = h.Request(200);
  request.objective.ttft_ms = 0.001;
  EXPECT_TRUE(h.Submit(request, &observer)) << "no step of this worker has been seen";
}

TEST(Objective, TheNextPredictionKnowsByHowMuchTheLastOnesWereWrong) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.Report(d, SlowSteps(h));
  double first_ms = 0, last_ms = 0;
  for (int i = 0; i < 40; ++i) {
    RecordingObserver observer;
    const auto id = h.Submit(h.Request(100), &observer);
    ASSERT_TRUE(id);
    (i == 0 ? first_ms : last_ms) = observer.routes.back().predicted_ttft_ms;
    // It always takes 30 ms longer than the reported steps suggest.
    h.Advance(std::chrono::milliseconds(130));
    h.Tokens(d, h.Generates(d).back().request_id(), 100, {1, 2, 3, 4}, v1::FINISH_LENGTH);
    h.Report(d, h.ReadyTelemetry());
  }
  EXPECT_NEAR(first_ms, 100, 10);
  EXPECT_NEAR(last_ms, 130, 3);
}

// Predicted TTFT of a prompt of 100 tokens that is sent now.
double PredictedMs(RouterHarness& h) {
  RecordingObserver observer;
  const auto id = h.Submit(h.Request(100), &observer);
  EXPECT_TRUE(id);
  if (!id) return 0;
  h.router.Cancel(*id);
  return observer.routes.back().predicted_ttft_ms;
}

TEST(Objective, WhatAWorkerHasComputedSinceItsReportIsNotWaitedForAgain) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.Report(d, SlowSteps(h));
  v1::Telemetry busy = h.ReadyTelemetry();
  busy.set_queued_prefill_tokens(400);
  busy.set_queued_prefill_context(400 * 401 / 2);
  busy.set_prefill_age_ns(50'000'000);
  h.Report(d, busy);
  // 400 ms of prompts, 50 ms done at the report; Cancel does not remove sent work.
  EXPECT_NEAR(PredictedMs(h), 350 + 100, 25);
  h.Advance(std::chrono::milliseconds(300));
  EXPECT_NEAR(PredictedMs(h), 350 + 100 - 300 + 100, 25);
  h.Advance(std::chrono::milliseconds(1000));
  EXPECT_NEAR(PredictedMs(h), 100, 15);
}

// Decode steps take 10 ms plus 1 ms per row.
v1::Telemetry StepsByRows(RouterHarness& h) {
  v1::Telemetry t = h.ReadyTelemetry();
  for (uint32_t i = 0; i < 40; ++i) {
    v1::StepSample* sample = t.add_steps();
    sample->set_decode_rows(1 + i % 20);
    sample->set_duration_ns((10 + 1 + i % 20) * 1'000'000ull);
  }
  return t;
}

// What was learnt of TTFT fades meanwhile.
void PassAMinute(RouterHarness& h, LinkId worker) {
  for (int i = 0; i < 60; ++i) {
    h.Advance(std::chrono::seconds(1));
    h.Report(worker, h.ReadyTelemetry());
  }
}

// Where streams have no time to spare, prompts wait for them. Then fewer streams are accepted.
TEST(Objective, PromptsThatAreLateBesideStreamsNearTheirLimitWidenItsMargin) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.Report(d, StepsByRows(h));
  RouterRequest request = h.Request(10);
  request.objective.tpot_ms = 12;
  RecordingObserver first;
  const auto before = h.Submit(request, &first);
  ASSERT_TRUE(before);
  h.router.Cancel(*before);
  request.objective.ttft_ms = 150;
  for (int i = 0; i < 25; ++i) {
    PassAMinute(h, d);
    RecordingObserver late;
    if (!h.Submit(request, &late)) break;
    h.Advance(std::chrono::milliseconds(400));
    h.Tokens(d, h.Generates(d).back().request_id(), 10, {1, 2, 3, 4}, v1::FINISH_LENGTH);
  }
  PassAMinute(h, d);
  request.objective.ttft_ms = 0;
  RecordingObserver last;
  const auto refused = h.Submit(request, &last);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("TPOT"), std::string::npos) << refused.error().message;
}

TEST(Objective, WhoIsRefusedForStepsThatAreTooLongIsToldWhenEnoughStreamsWillHaveEnded) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.Report(d, StepsByRows(h));
  std::vector<RecordingObserver> observers(8);
  RouterRequest request = h.Request(16);
  for (size_t i = 0; i < observers.size(); ++i) {
    request.max_new_tokens = i < 4 ? 100 : 1000;
    ASSERT_TRUE(h.Submit(request, &observers[i]));
  }
  v1::Telemetry busy = h.ReadyTelemetry();
  busy.set_running(8);
  // The time that prefill added to steps is over.
  for (int i = 0; i < 10; ++i) {
    h.Advance(std::chrono::seconds(1));
    h.Report(d, busy);
  }
  const auto refused_for = [&](double tpot_ms) {
    RecordingObserver observer;
    RouterRequest asks = h.Request(16);
    asks.max_new_tokens = 100;
    asks.objective.tpot_ms = tpot_ms;
    EXPECT_FALSE(h.Submit(asks, &observer)) << tpot_ms;
    return ToMs(h.retry_after);
  };
  // A step takes 18 ms, and less after the four short answers.
  EXPECT_NEAR(refused_for(16), 100 * 18, 100);
  // Some of the long ones must end; all that is known of them is the usual answer length, 128
  // tokens.
  EXPECT_NEAR(refused_for(12.5), 128 * 18, 130);
  EXPECT_EQ(refused_for(5), 60'000) << "an idle worker takes longer";
}

// What earlier answers taught fades within seconds. It says nothing about a queue.
TEST(Objective, AfterSlowAnswersAnIdleServerTellsNoLongWait) {
  RouterHarness h;
  const LinkId d = h.AddDecode("d");
  h.Report(d, StepsByRows(h));
  const std::vector<TokenId> tokens(10, 1);
  for (int i = 0; i < 40; ++i) {
    RecordingObserver observer;
    ASSERT_TRUE(h.Submit(h.Request(100, 11), &observer));
    const uint64_t wire_id = h.Generates(d).back().request_id();
    h.Advance(std::chrono::milliseconds(600));
    h.Report(d, h.ReadyTelemetry());
    h.Tokens(d, wire_id, 100, {1});
    h.Advance(std::chrono::milliseconds(1200));  // 120 ms a token
    h.Report(d, h.ReadyTelemetry());
    h.Tokens(d, wire_id, 101, tokens, v1::FINISH_LENGTH);
  }
  RecordingObserver observer;
  RouterRequest request = h.Request(100, 11);
  request.objective.tpot_ms = 20;
  ASSERT_FALSE(h.Submit(request, &observer)) << "a step takes 11 ms, answers took 120 a token";
  EXPECT_LE(h.retry_after, std::chrono::seconds(2));
  request.objective = {200, 0};
  ASSERT_FALSE(h.Submit(request, &observer)) << "first tokens took 600 ms";
  EXPECT_LE(h.retry_after, std::chrono::seconds(2));
}

}  // namespace
}  // namespace aisp
