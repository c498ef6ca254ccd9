// Durations as they come from other processes: a number that no clock can hold, or a negative one,
// must not overflow what is computed with it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

// Milliseconds of a message, 0 to a day.
inline Duration MillisFromWire(int64_t ms) {
  constexpr int64_t kMost = 86'400'000;
  return std::chrono::milliseconds(std::clamp<int64_t>(ms, 0, kMost));
}

}  // namespace aisp
