// A process's incarnation: 64 random bits. Of two one only ever asks whether they are equal.
#pragma once

#include <cstdint>

namespace aisp {

// `next`: gives 64 random bits. Never 0, which stands for nobody.
template <typename Random>
uint64_t DrawIncarnation(Random&& next) {
  uint64_t drawn = 0;
  while (drawn == 0) drawn = next();
  return drawn;
}

}  // namespace aisp
