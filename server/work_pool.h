// WorkPool: a few threads for work that is too long for the I/O thread, such as tokenizing a prompt. The queue is bounded: a
// full one is a refusal, never a wait.
// Submit from any thread; jobs run on the pool's threads and post their result where it belongs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/bounded_queue.h"
#include "common/threads.h"

namespace aisp {

class WorkPool {
 public:
  WorkPool(const std::string& name, int threads, size_t max_queued);
  // Runs what is queued, then joins.
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // False when the queue is full; the job was not taken.
  [[nodiscard]] bool TrySubmit(std::function<void()> job);

 private:
  BoundedQueue<std::function<void()>> queue_;
  std::vector<Thread> threads_;
};

}  // namespace aisp
