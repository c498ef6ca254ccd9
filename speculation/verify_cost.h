// VerifyCost: how long a decode step takes, fitted to those that were seen.
//
// Time over rows is a table of knots with lines between them, each a mean that forgets; on top of
// it comes a slope over the tokens of context that rows read. A step of more rows is never thought
// to be shorter than one of fewer. Plain values; one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/clock.h"

namespace aisp {

class VerifyCost {
 public:
  void Add(int32_t rows, int64_t context_tokens, Duration took);
  // In seconds; 1 for a step of one row when nothing has been seen.
  double Predict(int32_t rows, int64_t context_tokens) const;
  int64_t samples() const { return samples_; }

 private:
  static constexpr std::array<int32_t, 20> kKnots{1,  2,  3,  4,  5,  6,  8,  10,  12,  16,
                                                  20, 24, 32, 40, 48, 64, 96, 128, 192, 256};
  // What a row more costs of a step, before anything is known.
  static constexpr double kFirstSlope = 0.05;
  struct Knot {
    double seconds = 0, rows = 0, context = 0;
    int32_t seen = 0;
  };
  double OfRows(double rows, double context) const;
  double ContextSlope() const { return spread_ > 0 ? std::max(0.0, together_ / spread_) : 0; }

  std::array<Knot, kKnots.size()> knots_;
  double together_ = 0, spread_ = 0;  // covariance of time and context within knots, variance
  int64_t samples_ = 0;
};

}  // namespace aisp
