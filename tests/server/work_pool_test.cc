#include "server/work_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <thread>

namespace aisp {
namespace {

TEST(WorkPool, LargeTextsDelayNoSmallOnes) {
  WorkPool pool("test", 1, 8);
  std::promise<void> let_go;
  const auto held = let_go.get_future().share();
  // Two large ones: one runs, one waits behind it.
  for (int i = 0; i < 2; ++i)
    ASSERT_TRUE(pool.TrySubmit(WorkPool::kLargeBytes + 1, [held] { held.wait(); }));
  std::promise<void> small;
  ASSERT_TRUE(pool.TrySubmit(100, [&] { small.set_value(); }));
  EXPECT_EQ(small.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  let_go.set_value();
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
  // It takes nothing more once its end has begun, and does not end before its running job.
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

}  // namespace
}  // namespace aisp
