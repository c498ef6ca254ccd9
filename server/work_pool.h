// WorkPool: a few threads for work that would block the I/O thread, such as tokenizing. Large texts
// have a thread and queue of their own, as have jobs that may take seconds whatever their text
// (compiling constraints), so that neither delays small jobs. Queues are served fairly by tenant,
// by bytes of text per weight, or by CPU time for long jobs. They are bounded, and a tenant leaves
// places for others: a full queue refuses and never waits. Submit from any thread; jobs run on the
// pool's threads and post their results.
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
  // Size above which a text counts as large.
  static constexpr size_t kLargeBytes = 64 << 10;

  // `threads` for small jobs, one for large texts, and threads/2 (at least two) for long jobs,
  // started with the first one.
  WorkPool(const std::string& name, int threads, size_t max_queued);
  // Finishes running jobs and discards queued ones: nobody is left to answer.
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
