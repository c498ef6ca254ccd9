// WorkQueue: where a request's parsing and tokenizing goes, which is too long for the event loop.
// server/work_pool.h has threads for it; a simulation runs it at once.
#pragma once

#include <cstddef>
#include <functional>

namespace aisp {

class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  // `bytes`: of the text that the job works on. False: the queue is full, and the job was not
  // taken.
  [[nodiscard]] virtual bool TrySubmit(size_t bytes, std::function<void()> job) = 0;
};

}  // namespace aisp
