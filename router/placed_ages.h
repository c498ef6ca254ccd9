// PlacedAges: the mean age of the requests of a worker. Sums whole microseconds since the clock's
// beginning: nanoseconds would overflow after 300 days with 356 requests.
//
// Plain values. The router's thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

class PlacedAges {
 public:
  void Add(Instant placed) {
    sum_us_ += Us(placed);
    ++count_;
  }
  // `placed`: as added.
  void Remove(Instant placed) {
    sum_us_ -= Us(placed);
    --count_;
  }
  // Of all but one that was placed at `now`, in ms.
  double MeanOfOthersMs(Instant now) const {
    const auto ages_us = static_cast<double>(Us(now) * count_ - sum_us_);
    return 1e-3 * ages_us / static_cast<double>(std::max<int64_t>(1, count_ - 1));
  }

 private:
  static int64_t Us(Instant at) {
    return std::chrono::duration_cast<std::chrono::microseconds>(at - Instant{}).count();
  }

  int64_t sum_us_ = 0;
  int64_t count_ = 0;
};

}  // namespace aisp
