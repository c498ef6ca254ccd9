#include "server/work_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <ctime>
#include <future>
#include <memory>
#include <thread>

namespace aisp {
namespace {

TEST(WorkPool, LargeTextsDelayNoSmallOnes) {
  WorkPool pool("test", 1, 8);
  std::promise<void> let_go;
  const auto held = let_go.get_future().share();
  // Two large jobs: one runs, one waits behind it.
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(pool.TrySubmit(WorkPool::kLargeBytes + 1, [held] { held.wait(); }));
  std::promise<void> small;
  ASSERT_TRUE(pool.TrySubmit(100, [&] { small.set_value(); }));
  EXPECT_EQ(small.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  let_go.set_value();
}

TEST(WorkPool, LargeTextsLeaveTheProcessorToOthers) {
  WorkPool pool("test", 1, 8);
  const auto nice_of = [&pool](size_t bytes) {
    std::promise<int> out;
    EXPECT_TRUE(pool.TrySubmit(bytes, [&] { out.set_value(getpriority(PRIO_PROCESS, 0)); }));
    return out.get_future().get();
  };
  // The thread already has the lowest priority, so there is nothing to lower.
  if (getpriority(PRIO_PROCESS, 0) > 14) GTEST_SKIP();
  EXPECT_EQ(nice_of(1), getpriority(PRIO_PROCESS, 0));
  EXPECT_GT(nice_of(WorkPool::kLargeBytes + 1), nice_of(1));
}

TEST(WorkPool, WhatTakesLongDelaysNothingElse) {
  WorkPool pool("test", 1, 8);
  std::promise<void> let_go;
  const auto held = let_go.get_future().share();
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pool.TrySubmitLong([held] { held.wait(); }, {}));
  for (const size_t bytes : {size_t{100}, WorkPool::kLargeBytes + 1}) {
    std::promise<void> other;
    ASSERT_TRUE(pool.TrySubmit(bytes, [&] { other.set_value(); }));
    EXPECT_EQ(other.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  }
  let_go.set_value();
}

TEST(WorkPool, ATenantAloneLeavesAThreadForWhatTakesLong) {
  WorkPool pool("test", 1, 8);
  std::promise<void> let_go, begun;
  const auto held = let_go.get_future().share();
  std::atomic<int> runs{0};
  ASSERT_TRUE(pool.TrySubmitLong(
      [&, held] {
        begun.set_value();
        held.wait();
      },
      TenantShare{"a"}));
  begun.get_future().wait();
  ASSERT_TRUE(pool.TrySubmitLong([&] { ++runs; }, TenantShare{"a"}));
  std::promise<void> other;
  ASSERT_TRUE(pool.TrySubmitLong([&] { other.set_value(); }, TenantShare{"b"}));
  EXPECT_EQ(other.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(runs, 0);
  let_go.set_value();
}

// Works for so much CPU time of its own thread.
void Work(std::chrono::milliseconds cpu) {
  timespec from{}, now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
  do {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  } while ((now.tv_sec - from.tv_sec) * 1000 + (now.tv_nsec - from.tv_nsec) / 1'000'000 <
           cpu.count());
}

TEST(FairQueue, TurnsOfWhatTakesLongGoByItsTime) {
  FairQueue queue({.waiting = 64, .long_of_one = 1});
  std::string order;
  const auto push = [&](const std::string& tenant, int ms) {
    ASSERT_TRUE(queue.TryPush(
        0,
        [&order, tenant, ms] {
          order += tenant;
          Work(std::chrono::milliseconds(ms));
        },
        TenantShare{tenant}));
  };
  for (int i = 0; i < 3; ++i) push("a", 100);
  for (int i = 0; i < 3; ++i) push("b", 10);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(queue.RunNext());
  EXPECT_EQ(order, "abbbaa");
  queue.CloseAndClear();
  EXPECT_FALSE(queue.RunNext());
}

TEST(WorkPool, ItsEndDoesNotRunWhatIsQueued) {
  std::atomic<int> ran{0};
  std::promise<void> let_go, begun;
  const auto held = let_go.get_future().share();
  auto pool = std::make_unique<WorkPool>("test", 1, size_t{1} << 30);
  ASSERT_TRUE(pool->TrySubmit(1, [&, held] {
    begun.set_value();
    held.wait();
    ++ran;
  }));
  begun.get_future().wait();
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(pool->TrySubmit(1, [&] { ++ran; }));
  WorkPool* const ending = pool.get();
  std::thread ender([&] { pool.reset(); });
  // It accepts no jobs once shutdown has begun, and does not end before its running job.
  while (ending->TrySubmit(1, [] {})) std::this_thread::yield();
  let_go.set_value();
  ender.join();
  EXPECT_EQ(ran, 1);
}

TEST(WorkPool, AFullQueueRefuses) {
  WorkPool pool("test", 1, 1);
  std::promise<void> let_go, begun;
  const auto held = let_go.get_future().share();
  ASSERT_TRUE(pool.TrySubmit(1, [&, held] {
    begun.set_value();
    held.wait();
  }));
  begun.get_future().wait();
  EXPECT_TRUE(pool.TrySubmit(1, [] {}));
  EXPECT_FALSE(pool.TrySubmit(1, [] {}));
  EXPECT_TRUE(pool.TrySubmit(WorkPool::kLargeBytes + 1, [] {})) << "the other queue has room";
  let_go.set_value();
}

// A pool of one thread that is blocked until it is released.
class SharedPool : public ::testing::Test {
 protected:
  SharedPool() {
    std::promise<void> begun;
    EXPECT_TRUE(pool_.TrySubmit(1, [&begun, held = let_go_.get_future().share()] {
      begun.set_value();
      held.wait();
    }));
    begun.get_future().wait();
  }
  // Submits a job of `bytes` for a tenant; the jobs that run are recorded.
  bool Submit(const std::string& tenant, size_t bytes, uint32_t weight = 1) {
    const bool taken = pool_.TrySubmit(
        bytes,
        [this, tenant] {
          order_ += tenant;
          if (order_.size() == submitted_) done_.set_value();
        },
        TenantShare{tenant, weight});
    submitted_ += taken ? 1 : 0;
    return taken;
  }
  // The tenants of all waiting jobs, in the order in which they ran.
  std::string Order() {
    let_go_.set_value();
    done_.get_future().wait();
    return order_;
  }

  WorkPool pool_{"test", 1, 10};
  std::promise<void> let_go_, done_;
  size_t submitted_ = 0;
  std::string order_;
};

TEST_F(SharedPool, WhoAsksALotDelaysItself) {
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(Submit("a", 1000));
  ASSERT_TRUE(Submit("b", 1000));
  ASSERT_TRUE(Submit("b", 1000));
  EXPECT_EQ(Order(), "ababaaaa");
}

TEST_F(SharedPool, TurnsGoByBytesAndWeight) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Submit("a", 10'000));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Submit("b", 10'000, 2));
  EXPECT_EQ(Order(), "abbabba");
}

TEST_F(SharedPool, WhoFillsItLeavesPlacesForOthers) {
  int taken = 0;
  while (Submit("a", 100)) ++taken;
  EXPECT_EQ(taken, 8) << "of ten";
  EXPECT_TRUE(Submit("b", 100));
  EXPECT_EQ(Order(), "abaaaaaaa");
}

}  // namespace
}  // namespace aisp
