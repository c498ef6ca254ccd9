// TpotForecast: the TPOT to tell for a placement. It joins two predictions of almost independent
// errors: the step at the placement with the prompts of the last seconds (router/prediction.h), and
// the mean over the stream's life (router/stream_ahead.h). By how much answers usually take longer
// or shorter is learnt from those that finished.
//
// Plain values. The router's thread.
#pragma once

#include <algorithm>
#include <cmath>

#include "common/clock.h"

namespace aisp {

class TpotForecast {
 public:
  static double Join(double step_ms, double ahead_ms) {
    if (step_ms <= 0 || ahead_ms <= 0) return std::max(step_ms, ahead_ms);
    return std::pow(step_ms, 1 - kOfAhead) * std::pow(ahead_ms, kOfAhead);
  }

  // `predicted_ms`: of Join. `measured_ms`: mean TPOT of the answer. `beside`: streams that ran at
  // the same time. They share their chance, so that many of them say little more than one.
  void Learn(double predicted_ms, double measured_ms, double beside, Instant now) {
    if (predicted_ms <= 0 || measured_ms <= 0) return;
    const double off = std::log(measured_ms / predicted_ms) - off_;
    last_ = now;
    lately_ += kLatelyWeight * (std::clamp(off, -kMostOfOne, kMostOfOne) - lately_);
    if (std::abs(lately_) > kFarOff) {
      answers_ = kFew;
      lately_ = 0;
    }
    answers_ = std::min(answers_ + 1, kDoubt + kLives * std::max(0.0, beside));
    const double limit = std::max(spread_, kLeastSpread);
    off_ += std::clamp(off, -limit, limit) / answers_;
    spread_ += (std::min(std::abs(off), kMostOfOne) - spread_) / answers_;
  }

  // In ms: near the median. Forgets what was long ago.
  double Median(double predicted_ms, Instant now) const {
    const double kept = std::exp2(-std::max(0.0, ToMs(now - last_) - kHoldMs) / kHoldMs);
    return predicted_ms * std::exp(kept * off_);
  }

 private:
  static constexpr double kOfAhead = 0.65;
  // Counts as so many answers that came as predicted. Predictions need little correction, and
  // answers that run at the same time are off alike.
  static constexpr double kDoubt = 100;
  static constexpr double kLives = 10;
  static constexpr double kHoldMs = 10'000;
  // If the last answers are this far off on average, workers have changed: then earlier answers
  // count as few.
  static constexpr double kFarOff = 0.5;
  static constexpr double kLatelyWeight = 0.1;
  static constexpr double kFew = 20;
  static constexpr double kMostOfOne = 1;
  static constexpr double kLeastSpread = 0.02;

  // All of log(measured / predicted).
  double off_ = 0;
  double spread_ = 0.1;  // mean deviation from off_
  double lately_ = 0;    // mean deviation of the last answers, with sign
  double answers_ = kDoubt;
  Instant last_;
};

}  // namespace aisp
