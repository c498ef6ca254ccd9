// Deadline: a limit for a compilation in CPU time of its thread, so that other load on the machine
// causes no refusals. A ceiling of kWallFactor times as much wall-clock time bounds the wait of
// others. Created and checked on one thread. Plain data.
#pragma once

#include <chrono>
#include <ctime>

namespace aisp {

class Deadline {
 public:
  static constexpr int kWallFactor = 8;
  struct Times {
    std::chrono::nanoseconds cpu{0}, wall{0};
  };

  // No limit.
  Deadline() = default;
  explicit Deadline(std::chrono::nanoseconds timeout, Times now = Now())
      : set_(true), end_{now.cpu + timeout, now.wall + kWallFactor * timeout} {}

  bool set() const { return set_; }
  bool Passed() const { return set_ && Passed(Now()); }
  bool Passed(Times now) const { return set_ && (now.cpu > end_.cpu || now.wall > end_.wall); }

  static Times Now() { return {Read(CLOCK_THREAD_CPUTIME_ID), Read(CLOCK_MONOTONIC)}; }

 private:
  static std::chrono::nanoseconds Read(clockid_t clock) {
    timespec now = {};
    clock_gettime(clock, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  }

  bool set_ = false;
  Times end_;
};

}  // namespace aisp
