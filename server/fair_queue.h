// FairQueue: what threads have to do for several tenants, in turn by what was done for each over
// its weight, so that one that asks a lot delays itself. Bounded, and a tenant leaves places for
// others: a full queue is a refusal, never a wait. Any thread.
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
    // Jobs that take long: what one costs is the CPU time that it took, and at most so many of one
    // tenant with a name run at a time. 0: they cost what was said when they were pushed.
    int long_of_one = 0;
  };
  explicit FairQueue(const Limits& limits) : limits_(limits) {}
  FairQueue(const FairQueue&) = delete;
  FairQueue& operator=(const FairQueue&) = delete;

  // False: it is full or closed, or the tenant has its share of it; the job was not taken then. A
  // tenant without a name has no share to keep to.
  [[nodiscard]] bool TryPush(size_t cost, std::function<void()> job, const TenantShare& tenant);
  // Waits for a job and runs it; false, without one, once it was closed.
  bool RunNext();
  // Throws away what waits: there is nobody left to answer.
  void CloseAndClear();

 private:
  struct Job {
    size_t cost = 0;
    std::function<void()> run;
  };
  struct Lane {
    std::deque<Job> jobs;
    int running = 0;  // of long ones
  };
  bool Long() const { return limits_.long_of_one > 0; }
  using Lanes = std::map<FairShare::Account*, Lane>;
  // The one to which least was given of those that may run one more; the end: there is none.
  Lanes::iterator Next();
  void LongOneRan(FairShare::Account* account, size_t cpu_us);

  const Limits limits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  FairShare shares_;
  Lanes lanes_;  // with jobs that wait, or long ones that run
  size_t size_ = 0;
  bool closed_ = false;
};

}  // namespace aisp
