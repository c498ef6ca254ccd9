// LinearFit: y = coefficients . x, learnt online from samples; coefficients are never negative.
//
// Recursive least squares in its Kalman form (Haykin, "Adaptive Filter Theory", ch. 10 and 14): the
// coefficients are a random walk by a part of themselves, which forgets old samples at a bounded
// rate, and no variance grows above its prior, so that a direction that is not excited keeps what
// it was instead of blowing up. A residual far outside the usual spread (a paused process, a page
// fault storm) moves the fit only as far as a usual one would (Huber's weight). A coefficient that
// is negative by the samples counts as zero and the others as what they are likeliest to be then.
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
    Update(x, residual, std::clamp(spread_, kLeastNoise * std::abs(y), kMostNoise * std::abs(y)));
    positive_ = Positive();
  }

  // What others say of y, right to within `noise`: it counts where samples say little, and is none.
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
  // How far off that may be by what was seen: one standard deviation.
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
  // A prior off by so much is still within one standard deviation.
  static constexpr double kPriorSpread = 30;
  // Deviations of the walk at each sample, relative to the coefficients: of all together, as when a
  // device is slowed down, and of each for itself. Under a steady load samples hardly tell one
  // coefficient from another: were that forgotten soon, noise would divide a step among them.
  static constexpr double kCommonDrift = 0.005;
  static constexpr double kOwnDrift = 0.001;
  // Of a coefficient near zero: relative to so much of its prior.
  static constexpr double kDriftFloor = 0.03;
  // A residual counts at most as this many mean absolute residuals.
  static constexpr double kHuber = 4.0;
  // The first samples seem to agree, having made the fit: taken for exact they would settle it.
  static constexpr double kLeastNoise = 0.03;
  // Whatever a paused process made of an earlier sample: one that takes little says that little is
  // enough.
  static constexpr double kMostNoise = 0.5;
  // Below this many samples every residual counts in full: the prior may be off by orders of
  // magnitude.
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

  // For those that ask. What was learnt stays as it is: were it put right at every sample, what
  // noise did to the first ones would stay in the fit, which takes itself to be surer than that.
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
  Vector theta_{};     // coefficients of x / typical, as the samples have them
  Vector positive_{};  // likewise, none negative
  std::array<Vector, kDim> covariance_{};
  Vector prior_variance_{};
  double spread_ = 0;  // running mean of |residual|
  uint64_t samples_ = 0;
};

}  // namespace aisp
