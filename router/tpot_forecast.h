// TpotForecast: by how much answers took longer or shorter than StreamAhead had predicted
// (router/stream_ahead.h), and the median TPOT to tell. Learnt from finished answers.
//
// Plain values. The router's thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

class TpotForecast {
 public:
  // `predicted_ms`: at the placement. `measured_ms`: mean TPOT of the answer. `beside`: streams that
  // run at the same time; they share their chance, so that they count about as one.
  void Learn(double predicted_ms, double measured_ms, double beside, Instant now) {
    if (predicted_ms <= 0 || measured_ms <= 0) return;
    const double off = std::log(measured_ms / predicted_ms) - off_;
    last_ = now;
    lately_ += kLatelyWeight * (std::clamp(off, -kMostOfOne, kMostOfOne) - lately_);
    // If recent answers are all far off, workers have changed, and earlier answers count for little.
    if (std::abs(lately_) > kFarOff) {
      answers_ = std::min(answers_, kFew);
      lately_ = 0;
    }
    const double most = kDoubt + kLives * std::max(0.0, beside);
    answers_ = std::min(answers_ + 1, most);
    const double weight = 1 / (kDoubt + answers_);
    const double limit = std::max(spread_, kLeastSpread);
    off_ += weight * std::clamp(off, -limit, limit);
    spread_ += weight * (std::min(std::abs(off), kMostOfOne) - spread_);
  }

  // In ms. Forgets what it learnt long ago.
  double Median(double predicted_ms, Instant now) const {
    const double kept = std::exp2(-std::max(0.0, ToMs(now - last_) - kHoldMs) / kHoldMs);
    return predicted_ms * std::exp(kept * off_);
  }

 private:
  static constexpr double kDoubt = 20;  // answers that were as predicted, before the first
  static constexpr double kLives = 10;
  static constexpr double kFew = 5;
  static constexpr double kHoldMs = 10'000;
  static constexpr double kLatelyWeight = 0.1;
  static constexpr double kFarOff = 0.35;
  static constexpr double kMostOfOne = 1;
  static constexpr double kLeastSpread = 0.02;

  double off_ = 0;  // log of measured / predicted, near the median
  double spread_ = 0.1;  // mean deviation from it
  double lately_ = 0;
  double answers_ = 0;  // with weight
  Instant last_;
};

}  // namespace aisp
