// WorkPool: a few threads for work that is too long for the I/O thread, such as tokenizing a
// prompt. Work on a large text has a thread and a queue of its own, so that it delays no small one.
// The queues are bounded: a full one is a refusal, never a wait. Submit from any thread; jobs run
// on the pool's threads and post their result where it belongs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/bounded_queue.h"
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

  [[nodiscard]] bool TrySubmit(size_t bytes, std::function<void()> job) override;

 private:
  using Queue = BoundedQueue<std::function<void()>>;
  void StartThread(const std::string& name, Queue* queue);

  Queue small_, large_;
  std::vector<Thread> threads_;
};

}  // namespace aisp
