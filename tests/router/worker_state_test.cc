// How the router uses a worker's reports and heartbeats.
#include "router/worker_state.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

using std::chrono::milliseconds;

class AWorkerState : public ::testing::Test {
 protected:
  AWorkerState() {
    v1::Register info;
    info.set_worker_id("d");
    info.set_incarnation(7);
    info.set_role(v1::ROLE_DECODE);
    info.set_max_running(16);
    info.set_max_batch_tokens(512);
    info.set_max_prefill_chunk(512);
    worker_.emplace(LinkId(1), info, 1000, &directory_, &promised_, now_);
    // Steps of 5 ms, plus 1 ms per prefill token.
    for (int i = 0; i < 400; ++i) {
      Report(0, i % 2 == 0 ? 0 : static_cast<uint64_t>(20 + i % 100));
    }
  }
  void Report(uint64_t queued, uint64_t step_tokens) {
    v1::Telemetry t;
    t.set_incarnation(7);
    t.set_sequence(++sequence_);
    t.set_ready(true);
    t.set_running(1);
    t.set_queued_prefill_tokens(queued);
    t.set_queued_prefill_context(queued * queued / 2);
    v1::StepSample& step = *t.add_steps();
    step.set_decode_rows(1);
    step.set_prefill_tokens(static_cast<uint32_t>(step_tokens));
    step.set_duration_ns(5'000'000 + step_tokens * 1'000'000);
    worker_->Report(t, now_, &pool_);
  }
  // A heartbeat from a step that began `age` ago.
  void Beat(Duration age, Duration expected) {
    v1::Heartbeat beat;
    beat.set_incarnation(7);
    beat.set_step_age_ns(static_cast<uint64_t>(age.count()));
    beat.set_step_expected_ns(static_cast<uint64_t>(expected.count()));
    worker_->Beat(beat, now_);
  }
  double BusyMs() const { return worker_->View(now_, pool_).busy_ms; }

  Instant now_{1'000'000'000};
  PrefixDirectory directory_, promised_;
  PoolModel pool_;
  std::optional<WorkerState> worker_;
  uint64_t sequence_ = 0;
};

TEST_F(AWorkerState, IsBusyForWhatItsQueueTakesNotForWhatItsSlowestRowOnceTook) {
  Report(/*queued=*/200, 0);
  Beat(milliseconds(60), milliseconds(2000));
  EXPECT_NEAR(BusyMs(), 205 - 60, 15);
}

// It is alive but reports no load, while requests are sent to it.
TEST_F(AWorkerState, RemembersABoundedNumberOfRequestsThatNoReportShows) {
  Report(0, 0);
  const int32_t before = worker_->View(now_, pool_).rows;
  for (int i = 0; i < 5000; ++i) worker_->Charge(now_, {10, 50}, 10, 1, i % 2 == 0);
  EXPECT_LE(worker_->unreported(), 1024U);
  const WorkerView view = worker_->View(now_, pool_, /*yields=*/true);
  EXPECT_EQ(view.rows, before + 5000);
  EXPECT_EQ(view.queued_prefill.tokens, 50'000);
  now_ = now_ + milliseconds(10);
  Report(0, 0);
  EXPECT_EQ(worker_->unreported(), 0U);
  EXPECT_EQ(worker_->View(now_, pool_).rows, before);
  EXPECT_EQ(worker_->View(now_, pool_).queued_prefill.tokens, 0);
}

TEST_F(AWorkerState, IsBusyForOneBatchAtMost) {
  Report(/*queued=*/5000, 0);
  Beat(milliseconds(60), milliseconds(9000));
  EXPECT_NEAR(BusyMs(), 517 - 60, 30);
}

TEST_F(AWorkerState, ReadsAPrefixThatItsRowsShareOnceForEachOfThem) {
  v1::Telemetry t;
  t.set_incarnation(7);
  t.set_sequence(++sequence_);
  t.set_ready(true);
  t.set_running(10);
  t.set_total_blocks(10'000);
  t.set_free_blocks(9'000);
  EXPECT_TRUE(worker_->Report(t, now_, &pool_));
  v1::StepSample& step = *t.add_steps();
  step.set_decode_rows(10);
  step.set_decode_context(80'000);
  step.set_duration_ns(5'000'000);
  t.set_sequence(++sequence_);
  worker_->Report(t, now_, &pool_);
  EXPECT_EQ(worker_->View(now_, pool_).context_tokens, 80'000);
  worker_->Charge(now_, {}, 8'000, 1);
  EXPECT_EQ(worker_->View(now_, pool_).context_tokens, 88'000);
  t.clear_steps();
  t.set_running(5);
  t.set_sequence(++sequence_);
  now_ = now_ + milliseconds(50);
  worker_->Report(t, now_, &pool_);
  EXPECT_EQ(worker_->View(now_, pool_).context_tokens, 40'000);
}

TEST_F(AWorkerState, ReadsNoMoreThanASequenceCanHold) {
  v1::Telemetry t;
  t.set_incarnation(7);
  t.set_sequence(++sequence_);
  t.set_running(UINT32_MAX);
  t.set_waiting(UINT32_MAX);
  v1::StepSample& step = *t.add_steps();
  step.set_decode_rows(1);
  step.set_decode_context(uint64_t{1} << 50);
  step.set_duration_ns(1'000'000);
  worker_->Report(t, now_, &pool_);
  EXPECT_LE(worker_->View(now_, pool_).context_tokens, int64_t{1} << 46);
}

TEST_F(AWorkerState, PastWhatIsExpectedTakesAsLongAgain) {
  Report(/*queued=*/0, 0);
  Beat(milliseconds(400), milliseconds(2000));
  EXPECT_NEAR(BusyMs(), 400, 1);
  now_ = now_ + milliseconds(50);
  EXPECT_NEAR(BusyMs(), 450, 1);
}

}  // namespace
}  // namespace aisp
