// PoolTurn: whether queued pool work is still wanted when its turn comes: the client may be gone or
// the deadline over. Created on the I/O thread; used on any.
#pragma once

#include <atomic>

#include "api/error.h"
#include "common/clock.h"

namespace aisp {

class PoolTurn {
 public:
  // `due`: the request's deadline, including time in the queue.
  PoolTurn(const Clock* clock, Instant due) : clock_(clock), due_(due) {}

  // The client is gone.
  void Abandon() { gone_ = true; }
  // CANCELLED or DEADLINE_EXCEEDED when the work is no longer wanted.
  ApiResult<void> Check() const {
    if (gone_) return tl::unexpected(ApiError(Code::kCancelled, "nobody waits for it"));
    if (clock_->Now() < due_) return {};
    return tl::unexpected(
        ApiError(Code::kDeadlineExceeded,
                 "the request's time was over before its text was tokenized; allow more time"));
  }

 private:
  const Clock* const clock_;
  const Instant due_;
  std::atomic<bool> gone_{false};
};

}  // namespace aisp
