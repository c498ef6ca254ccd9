#include "common/bounded_queue.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "common/threads.h"

namespace aisp {
namespace {

constexpr Duration kLong = std::chrono::seconds(30);

TEST(BoundedQueue, KeepsOrderAndRefusesWhenFull) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.size(), 2u);
  EXPECT_EQ(queue.TryPop(), 1);
  EXPECT_TRUE(queue.TryPush(3));
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(kLong), 3);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueue, LeavesARefusedItemWithItsOwner) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  auto first = std::make_unique<int>(1);
  auto second = std::make_unique<int>(2);
  EXPECT_TRUE(queue.TryPush(std::move(first)));
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(*second, 2);
}

TEST(BoundedQueue, DrainsAfterCloseAndTakesNothingMore) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.TryPush(1));
  queue.Close();
  EXPECT_FALSE(queue.TryPush(2));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), std::nullopt);
  EXPECT_TRUE(queue.closed());
}

TEST(BoundedQueue, CloseReleasesEveryWaitingConsumer) {
  BoundedQueue<int> queue(1);
  std::atomic<int> released = 0;
  {
    std::vector<Thread> consumers;
    for (int i = 0; i < 4; ++i) {
      consumers.emplace_back("consumer", [&] {
        if (!queue.Pop()) ++released;
      });
    }
    queue.Close();
  }
  EXPECT_EQ(released, 4);
}

TEST(BoundedQueue, PopTimesOutOnAnEmptyQueue) {
  BoundedQueue<int> queue(1);
  const Instant start = SteadyClock().Now();
  EXPECT_EQ(queue.Pop(FromMs(20)), std::nullopt);
  EXPECT_GE(SteadyClock().Now() - start, FromMs(20));
}

TEST(BoundedQueue, WakeEndsOneWaitAndLosesNoItem) {
  BoundedQueue<int> queue(1);
  queue.Wake();
  EXPECT_EQ(queue.Pop(kLong), std::nullopt);  // Wake came before the wait
  queue.Wake();
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_EQ(queue.Pop(kLong), 1);
  EXPECT_EQ(queue.Pop(kLong), std::nullopt);  // and is kept until the item was taken
}

TEST(BoundedQueue, PopAllAppendsInOrder) {
  BoundedQueue<int> queue(3);
  for (int i = 1; i <= 3; ++i) EXPECT_TRUE(queue.TryPush(i));
  std::vector<int> out = {0};
  EXPECT_EQ(queue.PopAll(out), 3u);
  EXPECT_EQ(out, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(queue.PopAll(out), 0u);
}

TEST(BoundedQueue, TellsAnEventLoopOfEachPush) {
  auto waker = Waker::Create().value();
  BoundedQueue<int> queue(1, [&] { waker.Wake(); });
  Thread producer("producer", [&] { EXPECT_TRUE(queue.TryPush(7)); });
  EXPECT_TRUE(waker.Wait(kLong));
  EXPECT_EQ(queue.TryPop(), 7);
}

TEST(BoundedQueue, DeliversEveryItemOnceAndInOrderPerProducerUnderContention) {
  constexpr int kProducers = 4;
  constexpr int kItems = 5'000;
  struct Item {
    int producer = 0;
    int number = 0;
  };
  BoundedQueue<Item> queue(16);
  std::vector<int> next(kProducers, 0);
  std::atomic<int> refusals = 0;
  {
    std::vector<Thread> producers;
    for (int producer = 0; producer < kProducers; ++producer) {
      producers.emplace_back("producer", [&, producer] {
        for (int i = 0; i < kItems; ++i) {
          while (!queue.TryPush(Item{producer, i})) {
            ++refusals;
            std::this_thread::yield();
          }
        }
      });
    }
    for (int received = 0; received < kProducers * kItems; ++received) {
      const auto item = queue.Pop(kLong);
      ASSERT_TRUE(item.has_value());
      ASSERT_EQ(item->number, next[item->producer]++);
      ASSERT_LE(queue.size(), queue.capacity());
    }
  }
  EXPECT_EQ(next, std::vector<int>(kProducers, kItems));
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace aisp
