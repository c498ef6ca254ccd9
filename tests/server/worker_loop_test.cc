// The engine thread's loop with a device that computes asynchronously.
#include "server/worker_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace aisp {
namespace {

// Two steps deep, like a GPU. A step ends when the test ends it; requests are numbers, and a step
// includes all that arrived before it was planned.
class FakeRole final : public WorkerRole {
 public:
  void Start() override {}
  void SetRouters(const std::vector<std::string>& /*addresses*/) override {}
  bool CanLaunch() const override { return launched_ - collected_ < 2 && requests_ > 0; }
  void Launch() override {
    if (in_launch) in_launch();
    const std::lock_guard lock(mutex_);
    steps_.push_back(requests_);
    ++launched_;
    changed_.notify_all();
  }
  bool InFlight() const override { return launched_ > collected_; }
  bool StepDone() override { return done_ > collected_; }
  void Collect() override {
    AISP_CHECK(StepDone());
    ++collected_;
    collected = collected_;
    collected.notify_all();
  }
  void OnTransport() override {
    note = false;
    ++transports;
    transports.notify_all();
  }
  bool ExpectsSoon() const override { return expects; }
  bool HasNotes() const override { return note; }
  Instant NextTimer() const override { return kNever; }
  void OnTimer(Instant /*now*/) override {}
  void BeginDrain() override {}
  void MoveStreams() override {}
  bool Drained() const override { return false; }
  void CallOffDrain() override {}
  void StandBy() override {}
  void Activate(uint64_t /*role_epoch*/) override {}
  bool StopWanted() const override { return false; }
  void CloseLinks() override {}
  Status Ready() const override { return {}; }
  const Engine& engine() const override { std::abort(); }
  void OnLinkUp(LinkId /*link*/, const std::string& /*peer*/) override {}
  void OnMessage(LinkId /*link*/, v1::RouterMessage /*message*/) override {}
  void OnLinkDown(LinkId /*link*/, const Error& /*why*/) override {}

  std::function<void()> in_launch;  // a step that computes inside it
  std::atomic<int> transports{0};
  std::atomic<int> collected{0};
  std::atomic<bool> expects{false};
  std::atomic<bool> note{false};

  // Called on the loop's thread.
  void Arrive() {
    const std::lock_guard lock(mutex_);
    ++requests_;
    changed_.notify_all();
  }
  // From any thread: nothing more is to be computed.
  void Stop() {
    const std::lock_guard lock(mutex_);
    requests_ = 0;
  }
  // Called by the test: the device ends its oldest step.
  void EndStep() { ++done_; }
  bool AwaitSteps(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20),
                             [&] { return steps_.size() >= count; });
  }
  bool AwaitRequests(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return requests_ >= count; });
  }
  // How many requests had arrived when each step was planned.
  std::vector<int> steps() {
    const std::lock_guard lock(mutex_);
    return steps_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> steps_;
  int requests_ = 0;
  int launched_ = 0;
  int collected_ = 0;
  std::atomic<int> done_{0};
};

TEST(WorkerLoop, AnArrivalDuringAStepIsTakenInAtOnceAndIsInTheNextStepThatIsPlanned) {
  const SteadyClock clock;
  FakeRole role;
  WorkerLoop loop("test", &clock, nullptr);
  loop.Start(&role);
  loop.Post([&] { role.Arrive(); });
  ASSERT_TRUE(role.AwaitSteps(2));  // one computes, one waits behind it
  // No step of the device has ended; posted work runs all the same.
  loop.Post([&] { role.Arrive(); });
  ASSERT_TRUE(role.AwaitRequests(2));
  EXPECT_EQ(role.steps(), (std::vector<int>{1, 1}));
  role.EndStep();
  ASSERT_TRUE(role.AwaitSteps(3));
  // Of the two steps that were launched before it arrived, one had ended: one was ahead of it.
  EXPECT_EQ(role.steps(), (std::vector<int>{1, 1, 2}));
  loop.Stop();
}

TEST(WorkerLoop, ANoteIsFoundWithoutAWakeWhileOneIsExpectedAndDuringAStep) {
  const SteadyClock clock;
  FakeRole role;
  role.expects = true;
  WorkerLoop loop("test", &clock, nullptr);
  loop.Start(&role);
  role.note = true;
  role.transports.wait(0);
  EXPECT_EQ(role.transports, 1);
  role.expects = false;
  loop.Post([&] { role.Arrive(); });
  ASSERT_TRUE(role.AwaitSteps(2));  // neither ends
  role.note = true;
  role.transports.wait(1);
  EXPECT_EQ(role.transports, 2);
  loop.Stop();
}

// Stands still until the test moves it.
class StillClock final : public Clock {
 public:
  Instant Now() const override { return Instant{now_}; }
  void Advance(Duration by) { now_ += by.count(); }

 private:
  std::atomic<int64_t> now_{0};
};

TEST(WorkerLoop, PollsForAWhileAfterWorkAndThenSleeps) {
  StillClock clock;
  FakeRole role;
  WorkerLoop loop("test", &clock, nullptr);
  loop.PollAfterWork(std::chrono::milliseconds(100));
  loop.Start(&role);
  loop.Post([&] { role.Arrive(); });
  ASSERT_TRUE(role.AwaitSteps(2));
  role.Stop();
  role.EndStep();
  role.EndStep();
  for (int ended = role.collected; ended < 2; ended = role.collected) role.collected.wait(ended);
  clock.Advance(std::chrono::milliseconds(99));
  role.note = true;  // which wakes nobody
  role.transports.wait(0);
  EXPECT_EQ(role.transports, 1);
  EXPECT_FALSE(loop.Asleep());
  clock.Advance(std::chrono::milliseconds(1));
  while (!loop.Asleep()) std::this_thread::yield();
  role.note = true;
  loop.Stop();
  EXPECT_EQ(role.transports, 1);
}

TEST(WorkerLoop, StoppingDoesNotWaitForAStepThatNeverEnds) {
  const SteadyClock clock;
  FakeRole role;
  WorkerLoop loop("test", &clock, nullptr);
  loop.Start(&role);
  loop.Post([&] { role.Arrive(); });
  ASSERT_TRUE(role.AwaitSteps(2));
  loop.Stop();
}

// A step that computes on the loop's own thread lets the work of other workers run between layers,
// in order, and nothing else.
TEST(WorkerLoop, BetweenTwoLayersOnlyWhatMayRunThereRuns) {
  const SteadyClock clock;
  FakeRole role;
  WorkerLoop loop("test", &clock, nullptr);
  std::vector<int> order;  // the loop's thread; read when it has stopped
  int launches = 0;
  role.in_launch = [&] {
    if (++launches > 1) return;
    loop.RunInStep();  // there is nothing to run
    loop.Post([&] { order.push_back(4); });
    loop.PostInStep([&] { order.push_back(1); });
    loop.WakeTransport();
    loop.PostInStep([&] { order.push_back(2); });
    loop.RunInStep();
    order.push_back(3);
    EXPECT_EQ(role.transports, 1);
    loop.RunInStep();
  };
  loop.Start(&role);
  loop.Post([&] { role.Arrive(); });
  ASSERT_TRUE(role.AwaitSteps(2));
  loop.Post([&] { order.push_back(5); });
  loop.Stop();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3, 4, 5}));
  EXPECT_EQ(role.transports, 1);
}

}  // namespace
}  // namespace aisp
