// WorkQueue: runs parsing and tokenizing, which would block the event loop for too long.
// server/work_pool.h has threads for it; a simulation runs the work at once.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "common/fair_share.h"

namespace aisp {

class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  // `bytes`: size of the text to process. False when the queue is full or the tenant has its share
  // of it; the job is then not taken. A tenant without a name has no share limit.
  [[nodiscard]] virtual bool TrySubmit(size_t bytes, std::function<void()> job,
                                       const TenantShare& tenant = {}) = 0;
  // The same for a job that may take seconds whatever its size, without delaying others.
  [[nodiscard]] virtual bool TrySubmitLong(std::function<void()> job, const TenantShare& tenant) {
    return TrySubmit(0, std::move(job), tenant);
  }
};

}  // namespace aisp
