// Backoff: the wait before the next connection attempt: it doubles between two bounds and is spread
// over the upper half of the interval, so that workers that lost the same router do not reconnect
// in step. A plain value; one owner.
#pragma once

#include <algorithm>

#include "common/clock.h"
#include "common/random.h"

namespace aisp {

class Backoff {
 public:
  Backoff(Duration min, Duration max, uint64_t seed)
      : min_(min), max_(std::max(min, max)), next_(min), random_(seed) {}

  // The wait before the next attempt; the following one is twice as long, up to the maximum.
  Duration Next() {
    const Duration whole = next_;
    next_ = std::min(max_, next_ * 2);
    const auto half = static_cast<uint64_t>(whole.count()) / 2;
    return Duration(static_cast<int64_t>(half + random_.Below(half + 1)));
  }
  void Reset() { next_ = min_; }
  // For failures that a short wait will not fix (a refusal).
  void Exhaust() { next_ = max_; }

 private:
  Duration min_;
  Duration max_;
  Duration next_;
  SplitMix64 random_;
};

}  // namespace aisp
