// LinearFit: y = coefficients . x, learnt online from samples; coefficients are never negative.
//
// Recursive least squares in its Kalman form (Haykin, "Adaptive Filter Theory", ch. 10 and 14): the
// coefficients are a random walk, which forgets old samples at a bounded rate, and no variance
// grows above its prior, so that a direction that is not excited keeps its prior instead of blowing
// up. A residual far outside the usual spread (a paused process, a page fault storm) moves the fit
// only as far as a usual one would (Huber's weight). A coefficient that would turn negative is set
// to zero and the others to what they are likeliest to be then.
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

  // `typical`: of each x, so that the filter works on values near one, which keeps its covariance
  // well conditioned.
  LinearFit(const Vector& prior, const Vector& typical) : typical_(typical) {
    for (int i = 0; i < kDim; ++i) {
      theta_[i] = prior[i] * typical[i];
      // A prior off by a factor of thirty is still within one standard deviation.
      const double deviation = 30.0 * std::max(theta_[i], 0.1);
      prior_variance_[i] = deviation * deviation;
      covariance_[i][i] = prior_variance_[i];
    }
  }

  void Observe(Vector x, double y) {
    Drift();
    double residual = y - Predict(x);
    for (int i = 0; i < kDim; ++i) x[i] /= typical_[i];
    const double limit = kHuber * std::max(spread_, 0.02 * std::abs(y));
    if (samples_ >= kTrustAll) residual = std::clamp(residual, -limit, limit);
    const double weight = samples_ < kTrustAll ? 0.3 : 0.05;
    spread_ += weight * (std::abs(residual) - spread_);
    ++samples_;
    Update(x, residual);
    KeepPositive();
  }

  double Predict(const Vector& x) const {
    double y = 0;
    for (int i = 0; i < kDim; ++i) y += theta_[i] / typical_[i] * x[i];
    return y;
  }
  Vector Coefficients() const {
    Vector out = theta_;
    for (int i = 0; i < kDim; ++i) out[i] /= typical_[i];
    return out;
  }
  uint64_t samples() const { return samples_; }

 private:
  // Relative to the prior variance, per sample: an old sample's weight halves after a few hundred
  // new ones.
  static constexpr double kDrift = 1e-5;
  // A residual counts at most as this many mean absolute residuals.
  static constexpr double kHuber = 4.0;
  // Below this many samples every residual counts in full: the prior may be off by orders of
  // magnitude.
  static constexpr uint64_t kTrustAll = 8;

  void Drift() {
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

  void Update(const Vector& x, double residual) {
    Vector gain{};
    double innovation = std::max(spread_ * spread_, 1e-6);
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

  void KeepPositive() {
    for (int round = 0; round < kDim; ++round) {
      const int i =
          static_cast<int>(std::min_element(theta_.begin(), theta_.end()) - theta_.begin());
      if (theta_[i] >= 0) return;
      const double excess = theta_[i];
      for (int j = 0; j < kDim; ++j) theta_[j] -= covariance_[j][i] / covariance_[i][i] * excess;
      theta_[i] = 0;
    }
    for (double& t : theta_) t = std::max(0.0, t);
  }

  Vector typical_{};
  Vector theta_{};  // coefficients of x / typical
  std::array<Vector, kDim> covariance_{};
  Vector prior_variance_{};
  double spread_ = 0;  // running mean of |residual|
  uint64_t samples_ = 0;
};

}  // namespace aisp
