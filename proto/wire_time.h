// Durations from other processes, clamped so that no number, however large or negative, overflows
// later computations.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

// A message's milliseconds, clamped to 0 to one day.
inline Duration MillisFromWire(int64_t ms) {
  constexpr int64_t kMost = 86'400'000;
  return std::chrono::milliseconds(std::clamp<int64_t>(ms, 0, kMost));
}

}  // namespace aisp
