// Backoff: how long to wait before the next attempt to reach somebody: doubling between two bounds,
// spread over the upper half of the interval so that workers that lost the same router do not come
// back in step. A plain value; one owner.
#pragma once

#include <algorithm>

#include "common/clock.h"
#include "common/random.h"

namespace aisp {

class Backoff {
 public:
  Backoff(Duration min, Duration max, uint64_t seed)
      : min_(min), max_(std::max(min, max)), next_(min), random_(seed) {}

  // The wait before the next attempt; the one after that is twice as long, up to the maximum.
  Duration Next() {
    const Duration whole = next_;
    next_ = std::min(max_, next_ * 2);
    const auto half = static_cast<uint64_t>(whole.count()) / 2;
    return Duration(static_cast<int64_t>(half + random_.Below(half + 1)));
  }
  void Reset() { next_ = min_; }
  // For a failure that waiting briefly will not mend (a refusal).
  void Exhaust() { next_ = max_; }

 private:
  Duration min_;
  Duration max_;
  Duration next_;
  SplitMix64 random_;
};

}  // namespace aisp
