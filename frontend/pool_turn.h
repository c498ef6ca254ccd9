// PoolTurn: whether work that waited in the pool's queue is still wanted when its turn comes: not
// when its client is gone or its time is over. Made on the I/O thread; any thread.
#pragma once

#include <atomic>

#include "api/error.h"
#include "common/clock.h"

namespace aisp {

class PoolTurn {
 public:
  // `due`: the end of the request's time, waiting included.
  PoolTurn(const Clock* clock, Instant due) : clock_(clock), due_(due) {}

  // Nobody waits for it any more.
  void Abandon() { gone_ = true; }
  // CANCELLED or DEADLINE_EXCEEDED where the work shall not be done.
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
