// A process's incarnation: 64 random bits, compared only for equality.
#pragma once

#include <cstdint>

namespace aisp {

// `next`: returns 64 random bits. Never 0, which means no process.
template <typename Random>
uint64_t DrawIncarnation(Random&& next) {
  uint64_t drawn = 0;
  while (drawn == 0) drawn = next();
  return drawn;
}

}  // namespace aisp
