#include "server/fair_queue.h"

#include <ctime>
#include <utility>

namespace aisp {
namespace {

size_t ThreadCpuUs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<size_t>(now.tv_sec) * 1'000'000 + static_cast<size_t>(now.tv_nsec) / 1000;
}

}  // namespace

bool FairQueue::TryPush(size_t cost, std::function<void()> job, const TenantShare& tenant) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_ || size_ >= limits_.waiting) return false;
    FairShare::Account* const account = shares_.Enter(tenant);
    if (!tenant.name.empty() && !FairShare::MayTake(*account, size_, limits_.waiting)) {
      shares_.Leave(account);
      return false;
    }
    lanes_[account].jobs.push_back({cost, std::move(job)});
    ++size_;
  }
  changed_.notify_one();
  return true;
}

FairQueue::Lanes::iterator FairQueue::Next() {
  auto next = lanes_.end();
  for (auto it = lanes_.begin(); it != lanes_.end(); ++it) {
    const auto& [account, lane] = *it;
    const bool bounded = Long() && !account->name.empty();
    if (lane.jobs.empty() || (bounded && lane.running >= limits_.long_of_one)) continue;
    if (next == lanes_.end() || Precedes(*account, *next->first)) next = it;
  }
  return next;
}

bool FairQueue::RunNext() {
  Job job;
  FairShare::Account* account = nullptr;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return closed_ || Next() != lanes_.end(); });
    if (closed_) return false;
    const auto next = Next();
    account = next->first;
    job = std::move(next->second.jobs.front());
    next->second.jobs.pop_front();
    --size_;
    if (Long()) {
      ++next->second.running;
    } else {
      if (next->second.jobs.empty()) lanes_.erase(next);
      FairShare::Charge(account, static_cast<int64_t>(job.cost));
      shares_.Leave(account);
    }
  }
  const size_t before = Long() ? ThreadCpuUs() : 0;
  job.run();
  job.run = nullptr;
  if (Long()) LongOneRan(account, ThreadCpuUs() - before);
  return true;
}

void FairQueue::LongOneRan(FairShare::Account* account, size_t cpu_us) {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    FairShare::Charge(account, static_cast<int64_t>(cpu_us));
    const auto lane = lanes_.find(account);
    --lane->second.running;
    if (lane->second.running == 0 && lane->second.jobs.empty()) lanes_.erase(lane);
    shares_.Leave(account);
  }
  // Another job of this tenant may have waited for the end of this one.
  changed_.notify_one();
}

void FairQueue::CloseAndClear() {
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
