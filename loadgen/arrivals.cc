#include "loadgen/arrivals.h"

#include <cmath>

#include "common/check.h"

namespace aisp::loadgen {
namespace {

// Standard normal by the polar method of Box and Muller; uses one of the two values.
double DrawNormal(SplitMix64* random) {
  for (;;) {
    const double u = 2 * random->Uniform() - 1;
    const double v = 2 * random->Uniform() - 1;
    const double s = u * u + v * v;
    if (s > 0 && s < 1) return u * std::sqrt(-2 * std::log(s) / s);
  }
}

double RateAt(const ArrivalPlan& plan, size_t index, size_t count) {
  if (plan.ramp_up.empty()) return plan.rate;
  const double progress =
      count > 1 ? static_cast<double>(index) / static_cast<double>(count - 1) : 0;
  if (plan.ramp_up == "linear") return plan.start_rps + (plan.end_rps - plan.start_rps) * progress;
  return plan.start_rps * std::pow(plan.end_rps / plan.start_rps, progress);
}

}  // namespace

double DrawGamma(SplitMix64* random, double shape) {
  AISP_CHECK(shape > 0);
  if (shape < 1) {
    // 1 - u is in (0, 1], since a power of 0 would give a gap of length 0.
    return DrawGamma(random, shape + 1) * std::pow(1 - random->Uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = DrawNormal(random);
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - random->Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return d * v;
    }
  }
}

std::vector<double> ArrivalTimes(const ArrivalPlan& plan, size_t count, uint64_t seed) {
  std::vector<double> times(count, 0.0);
  if (count == 0 || (plan.ramp_up.empty() && std::isinf(plan.rate))) return times;
  SplitMix64 random(seed);
  double at = 0;
  for (size_t i = 0; i < count; ++i) {
    const double gap =
        std::isinf(plan.burstiness) ? 1 : DrawGamma(&random, plan.burstiness) / plan.burstiness;
    at += gap / RateAt(plan, i, count);
    times[i] = at;
  }
  if (plan.ramp_up.empty()) {
    const double stretch = static_cast<double>(count) / plan.rate / at;
    for (double& time : times) time *= stretch;
  }
  return times;
}

}  // namespace aisp::loadgen
