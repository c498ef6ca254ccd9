#include "router/step_time_model.h"

#include <algorithm>
#include <cmath>

namespace aisp {
namespace {

// Features are scaled so that typical values are near one; that keeps the covariance well
// conditioned.
constexpr std::array<double, 4> kScale = {1.0, 100.0, 10.0, 10000.0};
constexpr uint64_t kMaxDurationNs = 600'000'000'000;
// Relative to the prior variance, per sample: an old sample's weight halves after a few hundred new
// ones.
constexpr double kDrift = 1e-5;
// A residual counts at most as this many mean absolute residuals.
constexpr double kHuber = 4.0;
// Below this many samples every residual counts in full: the prior may be off by orders of
// magnitude.
constexpr uint64_t kTrustAll = 8;

}  // namespace

StepTimeModel::StepTimeModel(const StepCost& prior) {
  const std::array<double, kDim> coefficients = {prior.base_ms, prior.per_prefill_token_ms,
                                                 prior.per_decode_row_ms,
                                                 prior.per_context_token_ms};
  for (int i = 0; i < kDim; ++i) {
    theta_[i] = coefficients[i] * kScale[i];
    // A prior off by a factor of thirty is still within one standard deviation.
    const double deviation = 30.0 * std::max(theta_[i], 0.1);
    prior_variance_[i] = deviation * deviation;
    covariance_[i][i] = prior_variance_[i];
  }
}

void StepTimeModel::Drift() {
  for (int i = 0; i < kDim; ++i) {
    covariance_[i][i] += kDrift * prior_variance_[i];
    if (covariance_[i][i] <= prior_variance_[i]) continue;
    // Scaling a row and its column by the same factor keeps the matrix positive definite.
    const double factor = std::sqrt(prior_variance_[i] / covariance_[i][i]);
    for (int j = 0; j < kDim; ++j) {
      covariance_[i][j] *= factor;
      covariance_[j][i] *= factor;
    }
  }
}

void StepTimeModel::Observe(uint32_t prefill_tokens, uint32_t decode_rows, uint64_t context_tokens,
                            uint64_t duration_ns) {
  if (duration_ns == 0 || duration_ns > kMaxDurationNs) return;
  if (prefill_tokens == 0 && decode_rows == 0) return;
  const Vector x = {1.0, prefill_tokens / kScale[1], decode_rows / kScale[2],
                    static_cast<double>(context_tokens) / kScale[3]};
  Drift();

  const double measured_ms = static_cast<double>(duration_ns) * 1e-6;
  double predicted_ms = 0;
  for (int i = 0; i < kDim; ++i) predicted_ms += theta_[i] * x[i];
  double residual = measured_ms - predicted_ms;
  const double limit = kHuber * std::max(spread_ms_, 0.02 * measured_ms);
  if (samples_ >= kTrustAll) residual = std::clamp(residual, -limit, limit);
  const double weight = samples_ < kTrustAll ? 0.3 : 0.05;
  spread_ms_ += weight * (std::abs(residual) - spread_ms_);
  ++samples_;

  Vector gain{};
  double innovation = std::max(spread_ms_ * spread_ms_, 1e-6);
  for (int i = 0; i < kDim; ++i) {
    for (int j = 0; j < kDim; ++j) gain[i] += covariance_[i][j] * x[j];
    innovation += gain[i] * x[i];
  }
  for (int i = 0; i < kDim; ++i) theta_[i] += gain[i] / innovation * residual;
  for (int i = 0; i < kDim; ++i) {
    for (int j = i; j < kDim; ++j) {
      covariance_[i][j] -= gain[i] * gain[j] / innovation;
      covariance_[j][i] = covariance_[i][j];
    }
    // Rounding must not make a variance vanish or turn negative.
    covariance_[i][i] = std::max(covariance_[i][i], 1e-12 * prior_variance_[i]);
  }
}

StepCost StepTimeModel::Cost() const {
  StepCost cost;
  cost.base_ms = std::max(0.0, theta_[0]) / kScale[0];
  cost.per_prefill_token_ms = std::max(0.0, theta_[1]) / kScale[1];
  cost.per_decode_row_ms = std::max(0.0, theta_[2]) / kScale[2];
  cost.per_context_token_ms = std::max(0.0, theta_[3]) / kScale[3];
  return cost;
}

}  // namespace aisp
