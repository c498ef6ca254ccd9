// The progress thread with a target that copies asynchronously, like a device: how many copies are
// in flight, in which order they end, and what removing a peer waits for.
#include "kvcache/transport/copy_worker.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace aisp {
namespace {

// Copies end when the test lets them.
class SlowTarget final : public CopyTarget {
 public:
  explicit SlowTarget(size_t depth) : depth_(depth) {}
  uint64_t bytes() const override { return 1 << 20; }
  size_t depth() const override { return depth_; }
  Status Copy(const std::byte*, std::span<const BlockCopy> copies, Epoch) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return open_; });
    if (copies[0].bytes == kRefused) return Unavailable("refused");
    ++begun_;
    changed_.notify_all();
    return {};
  }
  Status Await() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_ < allowed_; });
    ++ended_;
    return {};
  }
  void Warm(const std::byte*) override {
    std::lock_guard lock(mutex_);
    warmed_at_.push_back(begun_);
    changed_.notify_all();
  }
  // How many copies had begun at each Warm; waits for the first `count`.
  std::vector<size_t> AwaitWarmed(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return warmed_at_.size() >= count; });
    return warmed_at_;
  }
  void Allow(size_t more) {
    std::lock_guard lock(mutex_);
    allowed_ += more;
    changed_.notify_all();
  }
  // All expected work has been pushed: from now on copies begin.
  void AwaitBegun(size_t count) {
    std::unique_lock lock(mutex_);
    open_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return begun_ >= count; });
  }
  size_t begun() {
    std::lock_guard lock(mutex_);
    return begun_;
  }
  static constexpr uint64_t kRefused = 77;

 private:
  const size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = false;
  size_t begun_ = 0, ended_ = 0, allowed_ = 0;
  std::vector<size_t> warmed_at_;
};

class CopyWorkerTest : public testing::Test {
 protected:
  CopyWorkerTest() {
    completions_.SetWaker([this] {
      std::lock_guard lock(mutex_);
      ++woken_;
      changed_.notify_all();
    });
  }
  void Push(uint64_t peer, uint64_t bytes = 16) {
    const auto id = completions_.Admit(KvPeerId(1));
    ASSERT_TRUE(id);
    const BlockCopy copy{0, 0, bytes};
    worker_.Push(*id, KvPeerId(peer), Epoch{peer}, {&copy, 1}, target_);
    pushed_.push_back(*id);
  }
  void AwaitSleep() {
    while (!worker_.Asleep()) std::this_thread::yield();
  }
  // The next completions, in order.
  std::vector<WriteCompletion> Take(size_t count) {
    std::vector<WriteCompletion> taken;
    while (taken.size() < count) {
      std::array<WriteCompletion, 8> some;
      const size_t n = completions_.Poll(some);
      for (size_t i = 0; i < n; ++i) taken.push_back(std::move(some[i]));
      if (n > 0) continue;
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return woken_ > 0; });
      woken_ = 0;
    }
    return taken;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int woken_ = 0;
  const std::shared_ptr<SlowTarget> target_ = std::make_shared<SlowTarget>(3);
  CompletionQueue completions_{64};
  std::vector<WriteId> pushed_;
  CopyWorker worker_{"kv-test", nullptr, &completions_};
};

TEST_F(CopyWorkerTest, BeginsTheNextCopiesWhileADeviceHasOne) {
  for (int i = 0; i < 5; ++i) Push(1);
  target_->AwaitBegun(3);
  std::array<WriteCompletion, 8> none;
  EXPECT_EQ(completions_.Poll(none), 0u);
  EXPECT_EQ(target_->begun(), 3u);
  target_->Allow(1);
  EXPECT_EQ(Take(1)[0].id, pushed_[0]);
  target_->AwaitBegun(4);
  EXPECT_EQ(target_->begun(), 4u);
  target_->Allow(4);
  const auto rest = Take(4);
  for (size_t i = 0; i < rest.size(); ++i) {
    EXPECT_TRUE(rest[i].status);
    EXPECT_EQ(rest[i].id, pushed_[i + 1]);
  }
}

TEST_F(CopyWorkerTest, AnErrorEndsInItsTurn) {
  Push(1);
  Push(1, SlowTarget::kRefused);
  Push(1);
  target_->AwaitBegun(2);
  target_->Allow(2);
  const auto all = Take(3);
  EXPECT_TRUE(all[0].status);
  ASSERT_FALSE(all[1].status);
  EXPECT_EQ(all[1].status.error().message, "refused");
  EXPECT_TRUE(all[2].status);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].id, pushed_[i]);
}

TEST_F(CopyWorkerTest, CancelledWritesBeginNothing) {
  for (int i = 0; i < 4; ++i) Push(1);
  target_->AwaitBegun(3);
  worker_.Cancel(KvPeerId(1), Epoch{1});
  target_->Allow(3);
  const auto all = Take(4);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(all[i].status);
  ASSERT_FALSE(all[3].status);
  EXPECT_EQ(all[3].status.error().code, Code::kCancelled);
  EXPECT_EQ(target_->begun(), 3u);
}

TEST_F(CopyWorkerTest, RousedWithAndWithoutAWriteThatFollows) {
  target_->AwaitBegun(0);
  for (int i = 0; i < 20; ++i) {
    worker_.Rouse(target_);
    if (i % 3 == 1) AwaitSleep();
    Push(1);
    target_->Allow(1);
    EXPECT_TRUE(Take(1)[0].status);
    if (i % 3 == 2) AwaitSleep();
  }
}

TEST_F(CopyWorkerTest, WarmsTheTargetOfAWriteThatIsAnnounced) {
  target_->AwaitBegun(0);
  AwaitSleep();
  worker_.Rouse(target_);
  EXPECT_EQ(target_->AwaitWarmed(1), std::vector<size_t>{0});
  Push(1);
  target_->Allow(1);
  EXPECT_TRUE(Take(1)[0].status);
  AwaitSleep();
  Push(1);
  target_->Allow(1);
  EXPECT_TRUE(Take(1)[0].status);
  AwaitSleep();
  worker_.Rouse(target_);
  EXPECT_EQ(target_->AwaitWarmed(2), (std::vector<size_t>{0, 2})) << "only where it is announced";
}

TEST_F(CopyWorkerTest, APeerThatLeavesWaitsForAllOfItsCopiesUnderWay) {
  for (int i = 0; i < 3; ++i) Push(1);
  target_->AwaitBegun(3);
  auto removed = std::async(std::launch::async, [this] {
    worker_.Remove(KvPeerId(1), Error{Code::kUnavailable, "left"});
  });
  target_->Allow(2);
  Take(2);
  EXPECT_EQ(removed.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  target_->Allow(1);
  removed.get();
  EXPECT_TRUE(Take(1)[0].status);
}

}  // namespace
}  // namespace aisp
