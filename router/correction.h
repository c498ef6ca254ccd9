// Correction: what predictions for one decode worker were wrong by lately, and what to add so that
// they are right on average. The parts of a request's way that no term stands for (the step that is
// under way when it arrives, messages between processes) show here.
//
// Plain values. The router's thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

// What was learnt, and its mean distance from what came.
struct Learnt {
  double value = 0;
  double spread = 0;
};

// A running mean that forgets, and that values far outside the usual spread move only a little.
// Without new values it fades to where it started: what was learnt under load must not keep a
// worker from the requests that would show that the load is gone.
class RunningMean {
 public:
  explicit RunningMean(double start) : start_(start), mean_(start) {}
  double Value(Instant now) const { return start_ + Kept(now) * (mean_ - start_); }
  // The mean distance from the mean.
  double Spread(Instant now) const { return Kept(now) * spread_; }
  Learnt At(Instant now) const {
    const double kept = Kept(now);
    return {start_ + kept * (mean_ - start_), kept * spread_};
  }

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
  static constexpr double kGoneMs = 40 * kHalfMs;

  double Kept(Instant now) const {
    if (count_ == 0) return 1;
    const double idle_ms = ToMs(now - last_) - kHoldMs;
    if (idle_ms <= 0) return 1;
    return idle_ms > kGoneMs ? 0 : std::exp2(-idle_ms / kHalfMs);
  }

  double start_;
  double mean_;
  double spread_ = 0;
  uint64_t count_ = 0;
  Instant last_;
};

// How often something happens, or how much of it, lately.
class EventRate {
 public:
  explicit EventRate(double span_s = 0.5) : span_s_(span_s) {}
  void Add(Instant now, double amount = 1) {
    if (sum_ == 0) begin_ = now;
    sum_ = Sum(now) + amount;
    last_ = now;
  }
  // Before a whole span has passed, over what has.
  double PerSecond(Instant now) const {
    const double age_s = std::max(kLeastS, ToSeconds(now - begin_));
    return Sum(now) / (span_s_ * (1 - std::exp(-age_s / span_s_)));
  }
  // Over a whole span, though less may have passed: what begins does not last yet.
  double Lasting(Instant now) const { return Sum(now) / span_s_; }

 private:
  static constexpr double kLeastS = 0.1;
  double Sum(Instant now) const { return sum_ * std::exp(-ToSeconds(now - last_) / span_s_); }

  double span_s_;  // short: a burst shows at once
  double sum_ = 0;
  Instant begin_;
  Instant last_;
};

// An amount a second, of events that come by chance: what the last moment's deviates from the last
// seconds' counts only as far as chance does not explain it. A burst shows at once, and what comes
// next to a steady load is not taken for what just came.
class SteadyRate {
 public:
  void Add(Instant now, double amount) {
    lately_.Add(now, amount);
    mean_.Add(now, amount);
    squares_.Add(now, amount * amount);
  }
  double PerSecond(Instant now) const {
    constexpr double kChance = 1.5, kSurely = 3;  // standard deviations
    const double mean = mean_.PerSecond(now), lately = lately_.PerSecond(now);
    const double deviation = std::sqrt(squares_.PerSecond(now) / (2 * kShortS));
    const double off = std::abs(lately - mean);
    if (off <= kChance * deviation) return mean;
    const double part = (off / deviation - kChance) / (kSurely - kChance);
    return mean + std::min(part, 1.0) * (lately - mean);
  }

 private:
  static constexpr double kShortS = 0.5, kLongS = 5;
  EventRate lately_{kShortS};
  EventRate mean_{kLongS};
  EventRate squares_{kLongS};
};

// By how many mean errors a TPOT must be predicted below what a request asks for, learnt from those
// that were taken near their limit: a few of a hundred shall miss it. Near the most that workers
// can serve errors are large and a fixed margin refuses too many; where all come at once it refuses
// too few.
class AdmissionMargin {
 public:
  double value() const { return value_; }
  void Learn(bool missed) {
    value_ = std::clamp(value_ + kStep * (missed ? 1 - kMisses : -kMisses), kLeast, kMost);
  }

 private:
  static constexpr double kMisses = 0.04;
  static constexpr double kStep = 0.1;
  static constexpr double kLeast = 1.2;
  static constexpr double kMost = 4;
  double value_ = 2;
};

// Of the TTFT: what is added to the request's own part, and a factor of the time that it waits for
// others. They are learnt apart, or a burst's error would be taken off prompts that find an idle
// worker.
struct TtftCorrection {
  RunningMean offset_ms{0};
  RunningMean wait_factor{1};

  // `own_ms` and `wait_ms` were predicted without any correction.
  void Learn(double own_ms, double wait_ms, double measured_ms, Instant now) {
    constexpr double kMostFactor = 4.0;
    if (wait_ms <= 0.5 * own_ms) {
      offset_ms.Add(measured_ms - own_ms - wait_ms * wait_factor.Value(now), now);
    } else {
      const double waited_ms = measured_ms - own_ms - offset_ms.Value(now);
      wait_factor.Add(std::clamp(waited_ms / wait_ms, 0.0, kMostFactor), now);
    }
  }
};

struct Correction {
  TtftCorrection local;   // of prompts that it computes itself
  TtftCorrection remote;  // of those that a prefill worker computes for it
  // Added where it fetches the beginning from another worker before it computes the rest. Apart, or
  // what pulls take longer would be taken off, and put on, prompts that need none.
  RunningMean fetch_ms{0};
};

}  // namespace aisp
