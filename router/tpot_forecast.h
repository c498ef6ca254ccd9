// TpotForecast: predicts an answer's TPOT at its placement from the step time predicted at that
// moment. Load changes before the answer ends: running rows finish, and new ones go to lightly
// loaded workers. So only part of a deviation from the mean comes true. That part (a regression
// slope), the mean, and the median relative to the mean are learnt from finished answers. If the
// predictions of the last placements differ from earlier ones by more than chance, the load has
// changed: that comes true in full, before any answer of the new load has ended.
//
// Plain values. The router's thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

// Tells when values that scatter have shifted.
class ShiftDetector {
 public:
  uint64_t shifts() const { return shifts_; }
  // The factor by which the mean shifts with `value`: 1 until a shift is certain, then what the
  // next values, which end it, add to it.
  double Add(double value) {
    ++count_;
    const double first = 1.0 / static_cast<double>(count_);
    recent_ += std::max(kRecent, first) * (value - recent_);
    if (follows_ == 0) mean_ += std::max(kWeight, first) * (value - mean_);
    const double off = value - recent_;
    variance_ += std::max(kWeight, first) * (off * off - variance_);
    const double chance = kChance * std::sqrt(variance_ * kRecent / 2);
    const bool begins = count_ > kOfRecent && std::abs(recent_ - mean_) > chance;
    if (begins) {
      ++shifts_;
      follows_ = kFollows;
    } else if (follows_ == 0) {
      return 1;
    }
    --follows_;
    const double factor = recent_ / mean_;
    mean_ = recent_;
    count_ = kOfRecent;
    return factor;
  }

 private:
  static constexpr double kRecent = 0.05;
  static constexpr uint64_t kOfRecent = 20;
  static constexpr double kWeight = 0.005;
  // In standard deviations of the mean of the last twenty. Large, since the values of neighbouring
  // placements are alike.
  static constexpr double kChance = 10;
  static constexpr int kFollows = 40;  // values

  double mean_ = 0, recent_ = 0, variance_ = 0;
  uint64_t count_ = 0, shifts_ = 0;
  int follows_ = 0;
};

class TpotForecast {
 public:
  // The step time predicted at a placement. Returns the number of load changes so far, for Learn.
  uint64_t Placed(double predicted_ms) {
    const double factor = steps_.Add(predicted_ms);
    predicted_ *= factor;
    measured_ *= factor;
    variance_ *= factor * factor;
    covariance_ *= factor * factor;
    return steps_.shifts();
  }

  // An answer of an earlier load says nothing of the present one.
  void Learn(double predicted_ms, double measured_ms, uint64_t changes, Instant now) {
    if (changes == steps_.shifts()) Learn(predicted_ms, measured_ms, now);
  }

  // `predicted_ms`: step time at the placement. `measured_ms`: mean TPOT of the answer.
  void Learn(double predicted_ms, double measured_ms, Instant now) {
    if (count_ >= kLittle) measured_ms = WithinReason(Mean(predicted_ms), measured_ms);
    const double weight = std::max(kWeight, 1.0 / static_cast<double>(++count_));
    const double came = measured_ms - measured_;
    const double off = predicted_ms - predicted_;
    predicted_ += weight * off;
    measured_ += weight * came;
    last_ = now;
    if (count_ == 1) return;
    variance_ += weight * ((1 - weight) * off * off - variance_);
    covariance_ += weight * ((1 - weight) * off * came - covariance_);
  }

  // The median TPOT in ms. Returns `predicted_ms` if little was learnt, or long ago.
  double Median(double predicted_ms, Instant now) const {
    if (count_ < kLittle) return predicted_ms;
    const double kept = std::exp2(-std::max(0.0, ToMs(now - last_) - kHoldMs) / kHoldMs);
    return predicted_ms + kept * (Mean(predicted_ms) * (1 + median_) - predicted_ms);
  }

 private:
  static constexpr double kWeight = 0.005;  // averages about the last two hundred answers
  static constexpr double kMedianStep = 0.005;
  // Prior weight for a slope of one: identical samples say nothing about deviations.
  static constexpr double kDoubt = 0.03;
  static constexpr double kLeastSlope = 0.1;
  static constexpr double kHuber = 4;
  static constexpr double kLeastSpread = 0.02;
  static constexpr double kHoldMs = 2000;
  // If the mean error of recent answers is this many times the usual one, the load or the workers
  // have changed, and earlier answers count for little.
  static constexpr double kLatelyWeight = 0.1;
  static constexpr double kMostOfOne = 0.25;  // cap on one answer's error
  static constexpr double kSurely = 5;
  static constexpr double kFarOff = 0.4;   // or this much, whatever is usual
  static constexpr uint64_t kLittle = 10;  // answers
  static constexpr int kLately = 20;

  double Mean(double predicted_ms) const {
    const double doubt = kDoubt * kDoubt * predicted_ * predicted_;
    const double slope = std::clamp((covariance_ + doubt) / (variance_ + doubt), kLeastSlope, 1.0);
    // However far the extrapolation, a token takes some time.
    return std::max(measured_ + slope * (predicted_ms - predicted_), 0.1 * predicted_ms);
  }

  // Clips outliers (a stopped process), unless most answers are outliers.
  double WithinReason(double expected_ms, double measured_ms) {
    const double error = measured_ms / expected_ms - 1;
    const double limit = kHuber * std::max(spread_, kLeastSpread);
    const double weight = std::max(kWeight, 1.0 / static_cast<double>(++errors_));
    const double most = std::max(limit, kMostOfOne);
    lately_ += kLatelyWeight * (std::clamp(error, -most, most) - lately_);
    const double surely = std::min(kSurely * std::max(usual_, kLeastSpread), kFarOff);
    if (--rest_ < 0 && std::abs(lately_) > surely) {
      count_ = std::min(count_, kLittle);
      rest_ = kLately;
    }
    median_ += kMedianStep * spread_ * (error > median_ ? 1 : -1);
    // Errors right after a change do not count as usual errors.
    if (rest_ <= 0 || errors_ <= kLately) {
      spread_ += weight * (std::min(std::abs(error), limit) - spread_);
      usual_ += weight * (std::abs(lately_) - usual_);
    }
    const double counts = rest_ > 0 ? std::max(limit, kMostOfOne * 2) : limit;
    return expected_ms * (1 + std::clamp(error, -counts, counts));
  }

  ShiftDetector steps_;                  // of the step times predicted at placements
  double predicted_ = 0, measured_ = 0;  // means
  double variance_ = 0, covariance_ = 0;
  double median_ = 0;  // of measured / mean - 1
  double spread_ = 0;  // mean absolute relative error
  double lately_ = 0;  // mean error of recent answers, and its usual absolute value
  double usual_ = 0;
  uint64_t count_ = 0;   // answers with weight
  uint64_t errors_ = 0;  // answers seen
  int rest_ = kLately;   // answers until the next change can be detected
  Instant last_;
};

}  // namespace aisp
