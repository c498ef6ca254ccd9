// Correction: what predictions for one decode worker were wrong by lately, and what to add so that
// they are right on average. The parts of a request's way that no term stands for (the step that is
// under way when it arrives, messages between processes) show here, and so does what prompts that
// are computed beside decodes do to the time per token.
//
// Plain values. The router's thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

// A running mean that forgets, and that values far outside the usual spread move only a little.
// Without new values it fades to where it started: what was learnt under load must not keep a
// worker from the requests that would show that the load is gone.
class RunningMean {
 public:
  explicit RunningMean(double start) : start_(start), mean_(start) {}
  double Value(Instant now) const { return start_ + Kept(now) * (mean_ - start_); }
  // The mean distance from the mean.
  double Spread(Instant now) const { return Kept(now) * spread_; }

  void Add(double value, Instant now) {
    mean_ = Value(now);
    spread_ = Spread(now);
    last_ = now;
    ++count_;
    double residual = value - mean_;
    // Values that were all the same must not fix the mean for good.
    const double limit = kHuber * std::max({spread_, 0.02 * std::abs(mean_), kLeastSpread});
    if (count_ > kTrustAll) residual = std::clamp(residual, -limit, limit);
    const double weight = std::max(kWeight, 1.0 / static_cast<double>(count_));
    spread_ += weight * (std::abs(residual) - spread_);
    mean_ += weight * residual;
  }

 private:
  static constexpr double kWeight = 0.05;  // the last twenty or so count
  static constexpr double kHuber = 4.0;
  static constexpr double kLeastSpread = 0.01;
  static constexpr uint64_t kTrustAll = 4;
  static constexpr double kHoldMs = 2000;  // unchanged for so long
  static constexpr double kHalfMs = 2000;  // then half of it is left after each

  double Kept(Instant now) const {
    if (count_ == 0) return 1;
    const double idle_ms = ToMs(now - last_) - kHoldMs;
    return idle_ms <= 0 ? 1 : std::exp2(-idle_ms / kHalfMs);
  }

  double start_;
  double mean_;
  double spread_ = 0;
  uint64_t count_ = 0;
  Instant last_;
};

struct Correction {
  RunningMean local_ttft_ms{0};   // added to the TTFT of a prompt that it computes itself
  RunningMean remote_ttft_ms{0};  // and of one that a prefill worker computes for it
  RunningMean tpot_factor{1};     // times the TPOT of a step of nothing but decodes
};

}  // namespace aisp
