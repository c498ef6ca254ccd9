#include "common/clock.h"

#include <ctime>

#include "common/check.h"

namespace aisp {

Instant SteadyClock::Now() const {
  timespec ts{};
  AISP_CHECK(clock_gettime(CLOCK_MONOTONIC, &ts) == 0);
  return Instant{static_cast<int64_t>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec};
}

}  // namespace aisp
