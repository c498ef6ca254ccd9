#include "loadgen/arrivals.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace aisp::loadgen {
namespace {

struct Moments {
  double mean = 0;
  double cv = 0;
};

Moments OfGaps(const std::vector<double>& times) {
  std::vector<double> gaps;
  double before = 0;
  for (const double t : times) {
    gaps.push_back(t - before);
    before = t;
  }
  const auto n = static_cast<double>(gaps.size());
  const double mean = std::accumulate(gaps.begin(), gaps.end(), 0.0) / n;
  double squares = 0;
  for (const double g : gaps) squares += (g - mean) * (g - mean);
  return {mean, std::sqrt(squares / n) / mean};
}

TEST(Arrivals, GapsHaveTheMeanOfTheRateAndTheVariationOfTheBurstiness) {
  for (const double burstiness : {0.25, 1.0, 4.0, 25.0}) {
    const auto times = ArrivalTimes({.rate = 8, .burstiness = burstiness}, 40000, 7);
    const Moments m = OfGaps(times);
    EXPECT_NEAR(m.mean, 1.0 / 8, 1e-9) << burstiness;
    EXPECT_NEAR(m.cv, 1 / std::sqrt(burstiness), 0.03 / std::sqrt(burstiness)) << burstiness;
  }
}

TEST(Arrivals, GammaDrawsHaveMeanAndVarianceOfTheirShape) {
  for (const double shape : {0.3, 1.0, 2.5, 40.0}) {
    SplitMix64 random(3);
    constexpr int kDraws = 200000;
    double sum = 0, squares = 0;
    for (int i = 0; i < kDraws; ++i) {
      const double x = DrawGamma(&random, shape);
      ASSERT_GE(x, 0);
      sum += x;
      squares += x * x;
    }
    const double mean = sum / kDraws;
    EXPECT_NEAR(mean, shape, 0.02 * shape);
    EXPECT_NEAR(squares / kDraws - mean * mean, shape, 0.05 * shape);
  }
}

TEST(Arrivals, PoissonGapsAreExponential) {
  const auto times = ArrivalTimes({.rate = 1}, 50000, 11);
  double before = 0;
  int longer_than_one = 0, longer_than_three = 0;
  for (const double t : times) {
    longer_than_one += t - before > 1;
    longer_than_three += t - before > 3;
    before = t;
  }
  EXPECT_NEAR(longer_than_one / 50000.0, std::exp(-1), 0.01);
  EXPECT_NEAR(longer_than_three / 50000.0, std::exp(-3), 0.005);
}

TEST(Arrivals, InfiniteBurstinessIsEvenAndInfiniteRateIsAtOnce) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto even = ArrivalTimes({.rate = 4, .burstiness = inf}, 8, 1);
  for (size_t i = 0; i < even.size(); ++i)
    EXPECT_NEAR(even[i], 0.25 * static_cast<double>(i + 1), 1e-12);
  EXPECT_EQ(ArrivalTimes({.rate = inf}, 5, 1), std::vector<double>(5, 0.0));
}

TEST(Arrivals, TheSeedDecides) {
  const ArrivalPlan plan{.rate = 10};
  EXPECT_EQ(ArrivalTimes(plan, 100, 5), ArrivalTimes(plan, 100, 5));
  EXPECT_NE(ArrivalTimes(plan, 100, 5), ArrivalTimes(plan, 100, 6));
}

TEST(Arrivals, AShortRunOffersTheRateItWasAskedFor) {
  EXPECT_NEAR(ArrivalTimes({.rate = 20}, 10, 3).back(), 0.5, 1e-12);
}

TEST(Arrivals, ARampGoesFromStartToEnd) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const char* strategy : {"linear", "exponential"}) {
    const auto times = ArrivalTimes(
        {.burstiness = inf, .ramp_up = strategy, .start_rps = 2, .end_rps = 32}, 1001, 1);
    EXPECT_NEAR(times[1] - times[0], 0.5, 0.01) << strategy;
    EXPECT_NEAR(times[1000] - times[999], 1.0 / 32, 1e-4) << strategy;
    const double middle = 1 / (times[501] - times[500]);
    EXPECT_NEAR(middle, strategy[0] == 'l' ? 17 : 8, 0.2) << strategy;
  }
}

}  // namespace
}  // namespace aisp::loadgen
