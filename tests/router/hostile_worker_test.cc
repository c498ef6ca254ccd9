// Workers that say what no worker has a reason to say; fuzz_router_peer looks for more of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/router/router_harness.h"

namespace aisp {
namespace {

TEST(HostileWorker, AnErrorWithoutACodeIsNoSuccess) {
  for (const int code : {0, -1, 17, 1'000'000}) {
    RouterHarness h;
    const LinkId d = h.AddDecode("d0");
    RecordingObserver observer;
    ASSERT_TRUE(h.Submit(h.Request(20), &observer));
    h.Fail(d, h.Generates(d).at(0).request_id(), static_cast<Code>(code), /*retryable=*/false);
    EXPECT_EQ(observer.finishes, 1);
    EXPECT_EQ(observer.finish, v1::FINISH_ERROR);
    EXPECT_EQ(observer.error.code, Code::kInternal) << code;
  }
}

TEST(HostileWorker, ATokenBelowZeroIsItsFaultAndTheRequestMoves) {
  RouterHarness h;
  const LinkId d0 = h.AddDecode("d0");
  RecordingObserver observer;
  ASSERT_TRUE(h.Submit(h.Request(20), &observer));
  const LinkId d1 = h.AddDecode("d1");
  h.Tokens(d0, h.Generates(d0).at(0).request_id(), 20, {5, -1});
  EXPECT_TRUE(observer.tokens.empty());
  EXPECT_EQ(h.sender.closed.count(d0), 1u);
  h.Advance(std::chrono::milliseconds(100));
  EXPECT_EQ(h.Generates(d1).size(), 1u);
}

TEST(HostileWorker, ItsTimesAreNoLongerThanOurs) {
  for (const int64_t ns : {INT64_MAX, INT64_MIN, int64_t{-5}}) {
    RouterHarness h;
    const LinkId d = h.AddDecode("d0");
    RecordingObserver observer;
    ASSERT_TRUE(h.Submit(h.Request(20), &observer));
    h.clock.Set(h.clock.Now() + std::chrono::milliseconds(30));
    v1::WorkerMessage message;
    v1::TokenEvent& event = *message.mutable_tokens()->add_events();
    event.set_request_id(h.Generates(d).at(0).request_id());
    event.set_first_position(20);
    event.add_tokens(7);
    event.mutable_timing()->set_queue_ns(ns);
    h.router.OnMessage(d, message);
    EXPECT_GE(observer.first_timing.queue_ns(), 0);
    EXPECT_LE(observer.first_timing.queue_ns(), 30'000'000);
  }
}

TEST(HostileWorker, ReportsBeyondAllSenseDoNotSpoilPredictions) {
  RouterHarness h;
  const LinkId absurd = h.AddDecode("d0");
  v1::Telemetry report = h.ReadyTelemetry();
  report.set_running(UINT32_MAX);
  report.set_waiting(UINT32_MAX);
  report.set_queued_prefill_tokens(UINT64_MAX);
  report.set_queued_prefill_context(UINT64_MAX);
  report.set_prefill_age_ns(UINT64_MAX);
  report.set_free_blocks(UINT32_MAX);
  report.set_total_blocks(UINT32_MAX);
  report.set_transfer_bytes_per_s(std::numeric_limits<double>::quiet_NaN());
  v1::StepSample& step = *report.add_steps();
  step.set_prefill_tokens(UINT32_MAX);
  step.set_decode_rows(UINT32_MAX);
  step.set_duration_ns(UINT64_MAX);
  h.Report(absurd, report);
  v1::WorkerMessage beat;
  beat.mutable_heartbeat()->set_incarnation(1);
  beat.mutable_heartbeat()->set_step_age_ns(UINT64_MAX);
  beat.mutable_heartbeat()->set_step_expected_ns(uint64_t{1} << 63);
  h.router.OnMessage(absurd, beat);
  const LinkId honest = h.AddDecode("d1");
  RecordingObserver observer;
  ASSERT_TRUE(h.Submit(h.Request(20), &observer));
  EXPECT_EQ(h.Generates(honest).size(), 1u) << "the other one is as busy as can be";
  ASSERT_EQ(observer.routes.size(), 1u);
  EXPECT_TRUE(std::isfinite(observer.routes[0].predicted_ttft_ms));
  EXPECT_LT(observer.routes[0].predicted_ttft_ms, 60'000);
}

}  // namespace
}  // namespace aisp
