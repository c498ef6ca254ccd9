// LinearFit: y = coefficients . x, learnt online from samples; coefficients are never negative.
//
// Recursive least squares in its Kalman form (Haykin, "Adaptive Filter Theory", ch. 10 and 14). The
// coefficients follow a random walk whose steps are relative to their size, which forgets old
// samples at a bounded rate. No variance grows above its prior, so directions without samples keep
// their value. An outlier (a paused process, a page fault storm) counts no more than a usual
// residual (Huber's weight). A negative coefficient is set to zero, and the others to their
// conditional mean.
//
// Plain values, no allocation. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace aisp {

template <int kDim>
class LinearFit {
 public:
  using Vector = std::array<double, kDim>;

  // `typical`: a typical value of each x. The filter works on x / typical, which keeps its
  // covariance well conditioned.
  LinearFit(const Vector& prior, const Vector& typical) : typical_(typical) {
    for (int i = 0; i < kDim; ++i) {
      theta_[i] = prior[i] * typical[i];
      const double deviation = kPriorSpread * std::max(theta_[i], 0.1);
      prior_variance_[i] = deviation * deviation;
      covariance_[i][i] = prior_variance_[i];
    }
    positive_ = theta_;
  }

  void Observe(Vector x, double y) {
    Drift();
    for (int i = 0; i < kDim; ++i) x[i] /= typical_[i];
    double residual = y;
    for (int i = 0; i < kDim; ++i) residual -= theta_[i] * x[i];
    const double limit = kHuber * std::max(spread_, 0.02 * std::abs(y));
    if (samples_ >= kTrustAll) residual = std::clamp(residual, -limit, limit);
    const double weight = samples_ < kTrustAll ? 0.3 : 0.05;
    spread_ += weight * (std::abs(residual) - spread_);
    ++samples_;
    const double least = std::max(kLeastNoise, kMostNoise / static_cast<double>(samples_));
    Update(x, residual, std::clamp(spread_, least * std::abs(y), kMostNoise * std::abs(y)));
    positive_ = Positive();
  }

  // An estimate of y from another source, with standard deviation `noise`. It matters where samples
  // say little, and does not count as a sample.
  void Hint(Vector x, double y, double noise) {
    Drift();
    for (int i = 0; i < kDim; ++i) x[i] /= typical_[i];
    double residual = y;
    for (int i = 0; i < kDim; ++i) residual -= theta_[i] * x[i];
    Update(x, residual, noise);
    positive_ = Positive();
  }

  double Predict(const Vector& x) const {
    double y = 0;
    for (int i = 0; i < kDim; ++i) y += positive_[i] / typical_[i] * x[i];
    return y;
  }
  // Standard deviation of the estimate at x.
  double Deviation(const Vector& x) const {
    double variance = 0;
    for (int i = 0; i < kDim; ++i) {
      for (int j = 0; j < kDim; ++j)
        variance += covariance_[i][j] * (x[i] / typical_[i]) * (x[j] / typical_[j]);
    }
    return std::sqrt(std::max(0.0, variance));
  }
  Vector Coefficients() const {
    Vector out = positive_;
    for (int i = 0; i < kDim; ++i) out[i] /= typical_[i];
    return out;
  }
  uint64_t samples() const { return samples_; }

 private:
  // Standard deviation of the prior, relative to it.
  static constexpr double kPriorSpread = 30;
  // Random-walk deviations per sample, relative to the coefficients: common to all (a slowed
  // device) and of each alone. A steady load hardly tells coefficients apart; with a large own
  // drift, noise would shift cost between them.
  static constexpr double kCommonDrift = 0.005;
  static constexpr double kOwnDrift = 0.001;
  // The walk of a coefficient near zero is relative to this part of its prior.
  static constexpr double kDriftFloor = 0.03;
  // A residual is clipped to this many mean absolute residuals.
  static constexpr double kHuber = 4.0;
  // The first samples fit almost exactly because they made the fit, so noise has a lower bound. It
  // is high for the very first, which are often slow: a cold device or page faults.
  static constexpr double kLeastNoise = 0.03;
  // Upper bound of the noise: one long pause must not devalue later samples.
  static constexpr double kMostNoise = 0.5;
  // The first samples count in full: the prior may be wrong by orders of magnitude.
  static constexpr uint64_t kTrustAll = 8;

  void Drift() {
    for (int i = 0; i < kDim; ++i) {
      for (int j = 0; j < kDim; ++j)
        covariance_[i][j] += kCommonDrift * kCommonDrift * positive_[i] * positive_[j];
    }
    for (int i = 0; i < kDim; ++i) {
      const double floor = kDriftFloor / kPriorSpread * std::sqrt(prior_variance_[i]);
      const double walk = kOwnDrift * std::max(positive_[i], floor);
      covariance_[i][i] += walk * walk;
      if (covariance_[i][i] <= prior_variance_[i]) continue;
      // Scaling a row and its column by the same factor keeps the matrix positive definite.
      const double factor = std::sqrt(prior_variance_[i] / covariance_[i][i]);
      for (int j = 0; j < kDim; ++j) {
        covariance_[i][j] *= factor;
        covariance_[j][i] *= factor;
      }
    }
  }

  void Update(const Vector& x, double residual, double noise) {
    Vector gain{};
    double innovation = std::max(noise * noise, 1e-6);
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

  // Coefficients for readers. The filter state is not clamped: clamping at each sample would keep
  // the noise of the first samples in the fit, and make it too sure.
  Vector Positive() const {
    Vector theta = theta_;
    for (int round = 0; round < kDim; ++round) {
      const int i = static_cast<int>(std::min_element(theta.begin(), theta.end()) - theta.begin());
      if (theta[i] >= 0) break;
      const double excess = theta[i];
      for (int j = 0; j < kDim; ++j) theta[j] -= covariance_[j][i] / covariance_[i][i] * excess;
      theta[i] = 0;
    }
    for (double& t : theta) t = std::max(0.0, t);
    return theta;
  }

  Vector typical_{};
  Vector theta_{};     // coefficients of x / typical, unclamped
  Vector positive_{};  // the same, none negative
  std::array<Vector, kDim> covariance_{};
  Vector prior_variance_{};
  double spread_ = 0;  // running mean of |residual|
  uint64_t samples_ = 0;
};

}  // namespace aisp
