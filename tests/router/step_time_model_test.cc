#include "router/step_time_model.h"

#include <cmath>

#include <gtest/gtest.h>

#include "common/random.h"

namespace aisp {
namespace {

struct Truth {
  double base, prefill, row, context;
  double Ms(uint32_t p, uint32_t r, uint64_t c) const {
    return base + prefill * p + row * r + context * static_cast<double>(c);
  }
};

void Feed(StepTimeModel& model, const Truth& truth, int samples, uint64_t seed, double noise = 0.02,
          double outliers = 0) {
  SplitMix64 random(seed);
  for (int i = 0; i < samples; ++i) {
    const auto p = static_cast<uint32_t>(random.Below(2) * random.Below(512));
    const auto r = static_cast<uint32_t>(1 + random.Below(32));
    const uint64_t c = r * random.Below(2000);
    double ms = truth.Ms(p, r, c) * (1 + noise * (2 * random.Uniform() - 1));
    if (random.Uniform() < outliers) ms += 5000;
    model.Observe(p, r, c, static_cast<uint64_t>(ms * 1e6));
  }
}

void ExpectClose(const StepTimeModel& model, const Truth& truth, double tolerance) {
  for (uint32_t p : {0u, 100u, 512u}) {
    for (uint32_t r : {1u, 16u, 32u}) {
      const double want = truth.Ms(p, r, r * 500);
      EXPECT_NEAR(model.Cost().StepMs(p, r, r * 500), want, tolerance * want) << p << " " << r;
    }
  }
}

TEST(StepTimeModel, LearnsTheCostsOfAFastAndOfASlowWorker) {
  const Truth fast{0.8, 0.002, 0.01, 1e-6};
  StepTimeModel a;
  Feed(a, fast, 300, 1);
  ExpectClose(a, fast, 0.1);
  const Truth slow{40, 1.5, 2, 1e-4};
  StepTimeModel b;
  Feed(b, slow, 300, 2);
  ExpectClose(b, slow, 0.1);
}

TEST(StepTimeModel, FollowsAWorkerThatBecomesSlower) {
  StepTimeModel model;
  Feed(model, {5, 0.1, 0.2, 1e-5}, 500, 3);
  const Truth slower{10, 0.2, 0.4, 2e-5};
  Feed(model, slower, 2000, 4);
  ExpectClose(model, slower, 0.15);
}

TEST(StepTimeModel, OutliersDoNotMoveTheFitFar) {
  const Truth truth{5, 0.1, 0.2, 1e-5};
  StepTimeModel model;
  Feed(model, truth, 500, 5);
  Feed(model, truth, 500, 6, 0.02, 0.02);
  ExpectClose(model, truth, 0.25);
}

TEST(StepTimeModel, DirectionsThatAreNeverSeenKeepThePrior) {
  StepTimeModel model;
  for (int i = 0; i < 20000; ++i) model.Observe(256, 0, 0, 20'000'000);
  const StepCost cost = model.Cost();
  EXPECT_DOUBLE_EQ(cost.per_decode_row_ms, StepCost{}.per_decode_row_ms);
  EXPECT_NEAR(cost.StepMs(256, 0, 0), 20, 0.5);
}

TEST(StepTimeModel, NonsenseSamplesAreIgnored) {
  StepTimeModel model;
  model.Observe(0, 0, 0, 1000);
  model.Observe(10, 1, 100, 0);
  model.Observe(10, 1, 100, UINT64_MAX);
  EXPECT_EQ(model.samples(), 0u);
}

TEST(StepTimeModel, CostsAreNeverNegative) {
  StepTimeModel model;
  SplitMix64 random(9);
  for (int i = 0; i < 5000; ++i) {
    model.Observe(static_cast<uint32_t>(random.Below(100)),
                  static_cast<uint32_t>(random.Below(100)), random.Below(100000),
                  1 + random.Below(1'000'000'000));
    const StepCost cost = model.Cost();
    ASSERT_GE(cost.base_ms, 0);
    ASSERT_GE(cost.per_prefill_token_ms, 0);
    ASSERT_GE(cost.per_decode_row_ms, 0);
    ASSERT_GE(cost.per_context_token_ms, 0);
    ASSERT_TRUE(std::isfinite(cost.StepMs(512, 64, 100000)));
  }
}

}  // namespace
}  // namespace aisp
