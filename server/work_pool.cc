#include "server/work_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

// What a job costs beside its text.
constexpr size_t kJobBytes = 256;

}  // namespace

WorkPool::WorkPool(const std::string& name, int threads, size_t max_queued)
    : small_(max_queued), large_(max_queued) {
  for (int i = 0; i < threads; ++i)
    StartThread(fmt::format("{}-{}", name, i), &small_, Thread::Priority::kNormal);
  StartThread(fmt::format("{}-large", name), &large_, Thread::Priority::kBackground);
}

WorkPool::~WorkPool() {
  small_.CloseAndClear();
  large_.CloseAndClear();
  for (Thread& thread : threads_) thread.Join();
}

void WorkPool::StartThread(const std::string& name, Queue* queue, Thread::Priority priority) {
  threads_.emplace_back(
      name,
      [queue] {
        while (auto job = queue->Pop()) (*job)();
      },
      priority);
}

bool WorkPool::TrySubmit(size_t bytes, std::function<void()> job, const TenantShare& tenant) {
  return (bytes > kLargeBytes ? large_ : small_).TryPush(bytes, std::move(job), tenant);
}

bool WorkPool::Queue::TryPush(size_t bytes, std::function<void()>&& job,
                              const TenantShare& tenant) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || size_ >= capacity_) return false;
    FairShare::Account* const account = shares_.Enter(tenant);
    if (!tenant.name.empty() && !FairShare::MayTake(*account, size_, capacity_)) {
      shares_.Leave(account);
      return false;
    }
    lanes_[account].push_back({bytes + kJobBytes, std::move(job)});
    ++size_;
  }
  changed_.notify_one();
  return true;
}

WorkPool::Queue::Lanes::iterator WorkPool::Queue::Next() {
  return std::min_element(lanes_.begin(), lanes_.end(), [](const auto& a, const auto& b) {
    return Precedes(*a.first, *b.first);
  });
}

std::optional<std::function<void()>> WorkPool::Queue::Pop() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || size_ > 0; });
  if (size_ == 0) return std::nullopt;
  const auto lane = Next();
  Job job = std::move(lane->second.front());
  lane->second.pop_front();
  --size_;
  FairShare::Account* const account = lane->first;
  if (lane->second.empty()) lanes_.erase(lane);
  FairShare::Charge(account, static_cast<int64_t>(job.bytes));
  shares_.Leave(account);
  return std::move(job.run);
}

void WorkPool::Queue::CloseAndClear() {
  Lanes dropped;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    size_ = 0;
    dropped.swap(lanes_);
  }
  changed_.notify_all();
}

}  // namespace aisp
