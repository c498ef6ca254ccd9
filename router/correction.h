// Correction: recent prediction errors of one decode worker, and the terms to add so that
// predictions are right on average. They cover what the cost model has no term for, such as the
// step that runs when a request arrives and messages between processes.
//
// Plain values. The router's thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

// A learnt value and its mean absolute deviation.
struct Learnt {
  double value = 0;
  double spread = 0;
};

// A running mean that forgets, and that outliers move only a little. Without new values it decays
// to its start value. Otherwise a worker that was slow under load would get no requests and could
// never show that the load is gone.
class RunningMean {
 public:
  explicit RunningMean(double start) : start_(start), mean_(start) {}
  double Value(Instant now) const { return start_ + Kept(now) * (mean_ - start_); }
  // The mean absolute deviation from the mean.
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
    // Identical values must not fix the mean for good.
    const double limit = kHuber * std::max({spread_, 0.02 * std::abs(mean_), kLeastSpread});
    if (count_ > kTrustAll) residual = std::clamp(residual, -limit, limit);
    const double weight = std::max(kWeight, 1.0 / static_cast<double>(count_));
    spread_ += weight * (std::abs(residual) - spread_);
    mean_ += weight * residual;
  }

 private:
  static constexpr double kWeight = 0.05;  // averages about the last twenty values
  static constexpr double kHuber = 4.0;
  static constexpr double kLeastSpread = 0.01;
  static constexpr uint64_t kTrustAll = 4;
  static constexpr double kHoldMs = 2000;  // keeps its value this long without samples
  static constexpr double kHalfMs = 2000;  // then halves after each such span
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

// Recent rate of events, or of an amount.
class EventRate {
 public:
  explicit EventRate(double span_s = 0.5) : span_s_(span_s) {}
  void Add(Instant now, double amount = 1) {
    if (sum_ == 0) begin_ = now;
    sum_ = Sum(now) + amount;
    last_ = now;
  }
  // Before a whole span has passed, divides by the time since the start.
  double PerSecond(Instant now) const {
    const double age_s = std::max(kLeastS, ToSeconds(now - begin_));
    return Sum(now) / (span_s_ * (1 - std::exp(-age_s / span_s_)));
  }
  // Divides by the whole span even if less has passed: a load that just began may not last.
  double Lasting(Instant now) const { return Sum(now) / span_s_; }

 private:
  static constexpr double kLeastS = 0.1;
  double Sum(Instant now) const { return sum_ * std::exp(-ToSeconds(now - last_) / span_s_); }

  double span_s_;  // short, so that a burst shows at once
  double sum_ = 0;
  Instant begin_;
  Instant last_;
};

// Rate per second of an amount whose events come at random. A change in the last moment counts only
// as far as chance does not explain it. So a burst shows at once, but noise around a steady load
// does not.
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

// Safety margin of the TPOT admission check, in mean prediction errors, learnt from accepted
// requests near their limit so that a few of a hundred miss it, or their TTFT beside so many
// streams. A fixed margin would refuse too many near saturation, and too few when many requests
// arrive at once.
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

// TTFT correction: an offset for the request's own part and a factor for its wait. They are learnt
// apart; otherwise errors of a burst would also change predictions for idle workers.
struct TtftCorrection {
  RunningMean offset_ms{0};
  RunningMean wait_factor{1};

  // `own_ms` and `wait_ms`: predictions without any correction.
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
  TtftCorrection local;   // of prompts prefilled on the decode worker
  TtftCorrection remote;  // of prompts prefilled by a prefill worker
  // Added if the worker pulls a prefix before it computes the rest. Kept apart so that slow pulls
  // do not change predictions for prompts that need none.
  RunningMean fetch_ms{0};
};

}  // namespace aisp
