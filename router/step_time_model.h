// What a step of one worker costs, learned online from the StepSamples in its telemetry:
//
//   step_ms = base + per_prefill_token * prefill_tokens + per_decode_row * decode_rows +
//   per_context_token * context_tokens
//
// Recursive least squares in its Kalman form (Haykin, "Adaptive Filter Theory", ch. 10 and 14): the
// parameters are a random walk, which forgets old samples at a bounded rate, and no variance grows
// above its prior, so that a direction that is not excited (a prefill worker has no decode rows)
// keeps its prior instead of blowing up. A residual far outside the usual spread (a paused process,
// a page fault storm) moves the fit only as far as a usual one would (Huber's weight).
//
// Plain values, no allocation. One thread.
#pragma once

#include <array>
#include <cstdint>

namespace aisp {

// The fitted coefficients, never negative.
struct StepCost {
  double base_ms = 2.0;
  double per_prefill_token_ms = 0.05;
  double per_decode_row_ms = 0.05;
  double per_context_token_ms = 1e-5;

  double StepMs(double prefill_tokens, double decode_rows, double context_tokens) const {
    return base_ms + per_prefill_token_ms * prefill_tokens + per_decode_row_ms * decode_rows +
           per_context_token_ms * context_tokens;
  }
};

class StepTimeModel {
 public:
  StepTimeModel() : StepTimeModel(StepCost{}) {}
  explicit StepTimeModel(const StepCost& prior);

  // A sample without work or with a duration outside (0, 10 minutes) is ignored.
  void Observe(uint32_t prefill_tokens, uint32_t decode_rows, uint64_t context_tokens,
               uint64_t duration_ns);
  StepCost Cost() const;
  uint64_t samples() const { return samples_; }

 private:
  static constexpr int kDim = 4;
  using Vector = std::array<double, kDim>;

  void Drift();

  Vector theta_{};  // coefficients of the scaled features
  std::array<Vector, kDim> covariance_{};
  Vector prior_variance_{};
  double spread_ms_ = 0;  // running mean of |residual|
  uint64_t samples_ = 0;
};

}  // namespace aisp
