// WorkQueue: where a request's parsing and tokenizing goes, which is too long for the event loop.
// server/work_pool.h has threads for it; a simulation runs it at once.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "common/fair_share.h"

namespace aisp {

class WorkQueue {
 public:
  virtual ~WorkQueue() = default;
  // `bytes`: of the text that the job works on. False: the queue is full, or its tenant has its
  // share of it; the job was not taken then. A tenant without a name has no share to keep to.
  [[nodiscard]] virtual bool TrySubmit(size_t bytes, std::function<void()> job,
                                       const TenantShare& tenant = {}) = 0;
  // The same for a job that may take seconds whatever its text, so that it delays no other.
  [[nodiscard]] virtual bool TrySubmitLong(std::function<void()> job, const TenantShare& tenant) {
    return TrySubmit(0, std::move(job), tenant);
  }
};

}  // namespace aisp
