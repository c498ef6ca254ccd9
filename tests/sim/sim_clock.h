// SimClock: a process's own clock in simulated time. It starts at another value than others, runs a
// little faster or slower, as clocks of different machines do, and stops while its machine is
// suspended. Timestamps sent across processes would fail at once; only durations may be sent.
#pragma once

#include <cmath>
#include <optional>

#include "common/clock.h"

namespace aisp {

class SimClock final : public Clock {
 public:
  static constexpr double kMostDrift = 2e-4;  // relative: 200 ppm, more than quartz has

  SimClock(const Clock* world, Duration offset, double drift)
      : world_(world), offset_(offset), rate_(1 + drift) {}

  Instant Now() const override { return stopped_ ? *stopped_ : Local(world_->Now()); }
  void Stop() { stopped_ = Now(); }
  void Go() {
    if (stopped_) offset_ += *stopped_ - Local(world_->Now());
    stopped_.reset();
  }
  // The first moment of the world at which this clock shows `local` or more.
  Instant ToWorld(Instant local) const {
    if (local == kNever) return kNever;
    const double estimate = static_cast<double>((local - Instant{} - offset_).count()) / rate_;
    Instant world{static_cast<int64_t>(estimate) - 2};
    while (Local(world) < local) world = world + Duration(1);
    return world;
  }

 private:
  Instant Local(Instant world) const {
    return Instant{std::llround(static_cast<double>(world.ns) * rate_)} + offset_;
  }

  const Clock* const world_;
  Duration offset_;
  const double rate_;
  std::optional<Instant> stopped_;  // the frozen reading
};

}  // namespace aisp
