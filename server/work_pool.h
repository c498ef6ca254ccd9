// WorkPool: a few threads for work that is too long for the I/O thread, such as tokenizing a
// prompt. Work on a large text has a thread and a queue of its own, and so has what may take
// seconds whatever its text (constraints that are compiled): neither delays a small one. What waits
// is taken in turn of its tenants, by the bytes of text worked on for each over its weight, or by
// the CPU time of what takes long. The queues are bounded, and a tenant leaves places for others: a
// full one is a refusal, never a wait. Submit from any thread; jobs run on the pool's threads and
// post their result where it belongs.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "common/threads.h"
#include "frontend/work_queue.h"
#include "server/fair_queue.h"

namespace aisp {

class WorkPool final : public WorkQueue {
 public:
  // More text than this is large.
  static constexpr size_t kLargeBytes = 64 << 10;

  // `threads` for small work, one for large, and half as many (two at least) for what takes long,
  // from the first of it on.
  WorkPool(const std::string& name, int threads, size_t max_queued);
  // Finishes what runs and throws away what is queued: there is nobody left to answer.
  ~WorkPool() override;
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  [[nodiscard]] bool TrySubmit(size_t bytes, std::function<void()> job,
                               const TenantShare& tenant = {}) override;
  [[nodiscard]] bool TrySubmitLong(std::function<void()> job, const TenantShare& tenant) override;

 private:
  void StartThread(const std::string& suffix, FairQueue* queue, Thread::Priority priority);

  const std::string name_;
  const int long_threads_;
  FairQueue small_, large_, long_;
  std::once_flag long_once_;
  std::vector<Thread> threads_;
};

}  // namespace aisp
