// Time, injected. Roles and the engine read time only from the Clock they are given, so that the
// simulation can run the same code under simulated time. Times are nanoseconds on one monotonic
// clock of the process.
#pragma once

#include <chrono>
#include <cstdint>

namespace aisp {

using Duration = std::chrono::nanoseconds;
// Nanoseconds since an arbitrary start (CLOCK_MONOTONIC in production, the simulated now in
// tests/sim).
struct Instant {
  int64_t ns = 0;
  friend constexpr auto operator<=>(const Instant&, const Instant&) = default;
  friend constexpr Instant operator+(Instant a, Duration d) { return Instant{a.ns + d.count()}; }
  friend constexpr Instant operator-(Instant a, Duration d) { return Instant{a.ns - d.count()}; }
  friend constexpr Duration operator-(Instant a, Instant b) { return Duration(a.ns - b.ns); }
};
inline constexpr Instant kNever{INT64_MAX};

constexpr double ToMs(Duration d) { return static_cast<double>(d.count()) * 1e-6; }
constexpr double ToSeconds(Duration d) { return static_cast<double>(d.count()) * 1e-9; }
constexpr Duration FromMs(double ms) { return Duration(static_cast<int64_t>(ms * 1e6)); }

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Instant Now() const = 0;
};

// CLOCK_MONOTONIC.
class SteadyClock final : public Clock {
 public:
  Instant Now() const override;
};

// A clock that moves only when told to. Not thread-safe: one simulation thread owns it.
class ManualClock final : public Clock {
 public:
  Instant Now() const override { return now_; }
  void Advance(Duration d) { now_ = now_ + d; }
  void Set(Instant t) { now_ = t; }

 private:
  Instant now_;
};

}  // namespace aisp
