// PlacedAges: the mean age of the requests of a worker; how many they are is the caller's. Sums
// whole microseconds since the clock's beginning: nanoseconds would overflow after 300 days with
// 356 requests.
//
// Plain values. The router's thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

class PlacedAges {
 public:
  void Add(Instant placed) { sum_us_ += Us(placed); }
  // `placed`: as added.
  void Remove(Instant placed) { sum_us_ -= Us(placed); }
  // Of all `count` that were added and not removed, but one that was placed at `now`; in ms.
  double MeanOfOthersMs(Instant now, size_t count) const {
    const auto all = static_cast<int64_t>(count);
    const auto ages_us = static_cast<double>(Us(now) * all - sum_us_);
    return 1e-3 * ages_us / static_cast<double>(std::max<int64_t>(1, all - 1));
  }

 private:
  static int64_t Us(Instant at) {
    return std::chrono::duration_cast<std::chrono::microseconds>(at - Instant{}).count();
  }

  int64_t sum_us_ = 0;
};

}  // namespace aisp
