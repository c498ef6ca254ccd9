// FairQueue: jobs of several tenants for a few threads, served by work done per weight, so that a
// busy tenant delays only itself. Bounded, and a tenant leaves places for others: a full queue
// refuses and never waits. Any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "common/fair_share.h"

namespace aisp {

class FairQueue {
 public:
  struct Limits {
    size_t waiting = 0;
    // For long jobs: at most so many of one named tenant run at a time, and their cost is the CPU
    // time used. 0: the cost is the one given to TryPush.
    int long_of_one = 0;
  };
  explicit FairQueue(const Limits& limits) : limits_(limits) {}
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // False when the queue is full or closed or the tenant has its share of it; the job is then not
  // taken. A tenant without a name has no share limit.
  [[nodiscard]] bool TryPush(size_t cost, std::function<void()> job, const TenantShare& tenant);
  // Waits for a job and runs it; false once closed and empty.
  bool RunNext();
  // Discards waiting jobs: nobody is left to answer.
  void CloseAndClear();

 private:
  struct Job {
    size_t cost = 0;
    std::function<void()> run;
  };
  struct Lane {
    std::deque<Job> jobs;
    int running = 0;  // long jobs
  };
  bool Long() const { return limits_.long_of_one > 0; }
  using Lanes = std::map<FairShare::Account*, Lane>;
  // The least served lane that may run another job; end(): none.
  Lanes::iterator Next();
  void LongOneRan(FairShare::Account* account, size_t cpu_us);

  const Limits limits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  FairShare shares_;
  Lanes lanes_;  // lanes with waiting or running long jobs
  size_t size_ = 0;
  bool closed_ = false;
};

}  // namespace aisp
