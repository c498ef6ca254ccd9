// WorkPool: a few threads for work that is too long for the I/O thread, such as tokenizing a
// prompt. Work on a large text has a thread and a queue of its own, so that it delays no small one.
// What waits is taken in turn of its tenants, by the bytes of text worked on for each over its
// weight, so that one that asks a lot delays itself. The queues are bounded, and a tenant leaves
// places for others: a full one is a refusal, never a wait. Submit from any thread; jobs run on the
// pool's threads and post their result where it belongs.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "common/fair_share.h"
#include "common/threads.h"
#include "frontend/work_queue.h"

namespace aisp {

class WorkPool final : public WorkQueue {
 public:
  // More text than this is large.
  static constexpr size_t kLargeBytes = 64 << 10;

  // `threads` for small work, and one for large.
  WorkPool(const std::string& name, int threads, size_t max_queued);
  // Finishes what runs and throws away what is queued: there is nobody left to answer.
  ~WorkPool() override;
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  [[nodiscard]] bool TrySubmit(size_t bytes, std::function<void()> job,
                               const TenantShare& tenant = {}) override;

 private:
  class Queue {
   public:
    explicit Queue(size_t capacity) : capacity_(capacity) {}
    bool TryPush(size_t bytes, std::function<void()>&& job, const TenantShare& tenant);
    // Waits for a job; nothing when it was closed.
    std::optional<std::function<void()>> Pop();
    void CloseAndClear();

   private:
    struct Job {
      size_t bytes = 0;
      std::function<void()> run;
    };
    using Lanes = std::map<FairShare::Account*, std::deque<Job>>;
    // The one to which least was given.
    Lanes::iterator Next();

    const size_t capacity_;
    std::mutex mutex_;
    std::condition_variable changed_;
    FairShare shares_;
    Lanes lanes_;
    size_t size_ = 0;
    bool closed_ = false;
  };
  void StartThread(const std::string& name, Queue* queue, Thread::Priority priority);

  Queue small_, large_;
  std::vector<Thread> threads_;
};

}  // namespace aisp
