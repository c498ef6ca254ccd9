// Messages that no correct worker sends; fuzz_router_peer searches for more.
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
    v1::Timing& timing = *event.mutable_timing();
    timing.set_queue_ns(ns);
    timing.set_prefill_ns(ns);
    timing.set_transfer_ns(ns);
    timing.set_transfer_total_ns(ns);
    timing.set_first_decode_ns(ns);
    timing.set_cached_tokens(UINT32_MAX);
    timing.set_kv_blocks_moved(UINT32_MAX);
    timing.set_fallback(std::string(1 << 20, 'f'));
    for (int i = 0; i < 5000; ++i) {
      v1::TraceSpan& span = *timing.add_spans();
      span.set_start_ns(ns);
      span.set_duration_ns(ns);
      span.set_note(std::string(10'000, 'n'));
    }
    h.router.OnMessage(d, message);
    const v1::Timing& told = observer.first_timing;
    for (const int64_t part : {told.queue_ns(), told.prefill_ns(), told.transfer_ns(),
                               told.transfer_total_ns(), told.first_decode_ns()}) {
      EXPECT_GE(part, 0);
      EXPECT_LE(part, 30'000'000);
    }
    EXPECT_LE(told.cached_tokens(), 20u);
    EXPECT_LE(told.kv_blocks_moved(), 20u);
    EXPECT_LT(told.ByteSizeLong(), 200'000u);
    for (const v1::TraceSpan& span : told.spans()) {
      EXPECT_GE(span.start_ns(), 0);
      EXPECT_LE(span.start_ns() + span.duration_ns(), 30'000'000);
    }
  }
}

TEST(HostileWorker, ATokenBeyondTheVocabularyIsItsFaultAndTheRequestMoves) {
  for (const bool alternative : {false, true}) {
    RouterOptions options;
    options.vocabulary = 1000;
    RouterHarness h(options);
    const LinkId d0 = h.AddDecode("d0");
    RecordingObserver observer;
    ASSERT_TRUE(h.Submit(h.Request(20), &observer));
    const LinkId d1 = h.AddDecode("d1");
    v1::WorkerMessage message;
    v1::TokenEvent& event = *message.mutable_tokens()->add_events();
    event.set_request_id(h.Generates(d0).at(0).request_id());
    event.set_first_position(20);
    event.add_tokens(alternative ? 5 : 1000);
    event.add_logprobs()->add_top_ids(alternative ? 1000 : 5);
    h.router.OnMessage(d0, message);
    EXPECT_TRUE(observer.tokens.empty());
    EXPECT_EQ(h.sender.closed.count(d0), 1u);
    h.Advance(std::chrono::milliseconds(100));
    ASSERT_EQ(h.Generates(d1).size(), 1u);
    EXPECT_EQ(h.Generates(d1).at(0).tokens_size(), 20) << "not a token of it goes to the next one";
    h.Tokens(d1, h.Generates(d1).at(0).request_id(), 20, {999});
    EXPECT_EQ(observer.tokens.size(), 1u);
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
