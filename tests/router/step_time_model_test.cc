#include "router/step_time_model.h"

#include <cmath>

#include <gtest/gtest.h>

#include "common/random.h"
#include "router/correction.h"

namespace aisp {
namespace {

// A worker with known costs, some of which differ in steps with prefill rows.
struct Truth {
  double base, token, prompt_context, row, context;
  double Ms(const StepShape& s) const {
    return base + token * s.prefill_tokens + prompt_context * s.prefill_context +
           row * s.decode_rows + context * s.decode_context;
  }
};

StepShape RandomShape(SplitMix64& random) {
  StepShape s;
  s.decode_rows = static_cast<double>(1 + random.Below(32));
  s.decode_context = s.decode_rows * static_cast<double>(random.Below(2000));
  if (random.Below(2) == 0) return s;
  const auto tokens = static_cast<int64_t>(1 + random.Below(512));
  const PromptWork work = PromptWork::Of(static_cast<int64_t>(random.Below(4000)), tokens);
  s.prefill_tokens = static_cast<double>(tokens);
  s.prefill_context = static_cast<double>(work.context);
  return s;
}

void Feed(StepTimeModel& model, const Truth& truth, int samples, uint64_t seed, double noise = 0.02,
          double outliers = 0) {
  SplitMix64 random(seed);
  for (int i = 0; i < samples; ++i) {
    const StepShape shape = RandomShape(random);
    double ms = truth.Ms(shape) * (1 + noise * (2 * random.Uniform() - 1));
    if (random.Uniform() < outliers) ms += 5000;
    model.Observe(shape, static_cast<uint64_t>(ms * 1e6));
  }
}

void ExpectClose(const StepTimeModel& model, const Truth& truth, double tolerance) {
  SplitMix64 random(99);
  for (int i = 0; i < 50; ++i) {
    const StepShape shape = RandomShape(random);
    const double want = truth.Ms(shape);
    EXPECT_NEAR(model.Cost().StepMs(shape), want, tolerance * want)
        << shape.prefill_tokens << " tokens, " << shape.decode_rows << " rows";
  }
}

TEST(StepTimeModel, LearnsTheCostsOfAFastAndOfASlowWorker) {
  const Truth fast{0.8, 0.002, 2e-7, 0.01, 1e-6};
  StepTimeModel a;
  Feed(a, fast, 400, 1);
  ExpectClose(a, fast, 0.05);
  const Truth slow{40, 1.5, 1e-4, 2, 1e-4};
  StepTimeModel b;
  Feed(b, slow, 400, 2);
  ExpectClose(b, slow, 0.05);
}

// An unknown device: its first steps show how far off the prior is.
TEST(StepTimeModel, AFewStepsOfOneKindSayHowSlowTheOtherIs) {
  const Truth slow{40, 0.25, 1.2e-5, 0.6, 6e-4};
  const StepShape prompt{2048, 2048.0 * 2049 / 2, 0, 0}, decode{0, 0, 20, 11000};
  StepTimeModel model;
  for (int i = 0; i < 3; ++i) model.Observe(prompt, static_cast<uint64_t>(slow.Ms(prompt) * 1e6));
  EXPECT_NEAR(model.Cost().StepMs(prompt), slow.Ms(prompt), 0.05 * slow.Ms(prompt));
  EXPECT_GT(model.Cost().StepMs(decode), 0.2 * slow.Ms(decode));
  EXPECT_LT(model.Cost().StepMs(decode), 5 * slow.Ms(decode));
  // The first step of its own kind gives better data.
  model.Observe(decode, static_cast<uint64_t>(slow.Ms(decode) * 1e6));
  EXPECT_NEAR(model.Cost().StepMs(decode), slow.Ms(decode), 0.05 * slow.Ms(decode));
  const StepShape more{0, 0, 80, 44000};
  EXPECT_GT(model.Cost().StepMs(more), 0.5 * slow.Ms(more));
  EXPECT_LT(model.Cost().StepMs(more), 2 * slow.Ms(more));
}

// Equal prompts do not tell the terms apart, but their sum is soon right.
TEST(StepTimeModel, AColdFirstStepIsSoonForgotten) {
  StepTimeModel model{StepCost{}};
  const StepShape prompt = {.prefill_tokens = 12, .prefill_context = 78};
  model.Observe(prompt, 15'000'000);
  for (int i = 0; i < 3; ++i) model.Observe(prompt, 2'400'000);
  EXPECT_NEAR(model.Cost().StepMs(prompt), 2.4, 0.25);
}

TEST(StepTimeModel, StepsWithPromptsMayHaveABaseOfTheirOwn) {
  StepTimeModel model;
  SplitMix64 random(11);
  const auto truth = [](const StepShape& s) {
    return s.prefill_tokens > 0 ? 12 + 0.01 * s.prefill_tokens : 3 + 0.02 * s.decode_rows;
  };
  for (int i = 0; i < 600; ++i) {
    const StepShape shape = RandomShape(random);
    model.Observe(shape, static_cast<uint64_t>(truth(shape) * 1e6));
  }
  const StepShape decode{0, 0, 16, 16000}, prompt{400, 80200, 0, 0};
  EXPECT_NEAR(model.Cost().StepMs(decode), truth(decode), 0.02 * truth(decode));
  EXPECT_NEAR(model.Cost().StepMs(prompt), truth(prompt), 0.02 * truth(prompt));
}

TEST(StepTimeModel, TheQuadraticPartOfALongPromptIsLearnt) {
  // 4 us per token and 1 ns per position read: at 32,768 tokens attention is four fifths of the
  // time.
  StepTimeModel model;
  SplitMix64 random(12);
  const auto truth_ms = [](const PromptWork& w) {
    return 1 + 4e-3 * static_cast<double>(w.tokens) + 1e-6 * static_cast<double>(w.context);
  };
  for (int i = 0; i < 800; ++i) {
    const auto begin = static_cast<int64_t>(random.Below(16) * 1024);
    const PromptWork work = PromptWork::Of(begin, 1024);
    model.Observe({1024, static_cast<double>(work.context), 0, 0},
                  static_cast<uint64_t>(truth_ms(work) * 1e6));
  }
  double want = 0;
  for (int64_t begin = 0; begin < 32768; begin += 1024)
    want += truth_ms(PromptWork::Of(begin, 1024));
  const double predicted = model.Cost().PromptMs(PromptWork::Of(0, 32768), 1024, {});
  EXPECT_NEAR(predicted, want, 0.05 * want);
}

TEST(StepTimeModel, FollowsAWorkerThatBecomesSlower) {
  StepTimeModel model;
  Feed(model, {5, 0.1, 1e-6, 0.2, 1e-5}, 500, 3);
  const Truth slower{10, 0.2, 2e-6, 0.4, 2e-5};
  Feed(model, slower, 2000, 4);
  ExpectClose(model, slower, 0.15);
}

// A decode worker fills up and then has about as many rows for minutes, with a card's noise. The
// learnt cost of half as many rows must not be lost: the planner needs it.
TEST(StepTimeModel, ASteadyLoadDoesNotBlurWhatFewerRowsTake) {
  const Truth truth{3.35, 0, 0, 0.02, 3.4e-5};
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    StepTimeModel model;
    SplitMix64 random(seed);
    const auto step = [&](double rows) {
      const StepShape shape{0, 0, rows, rows * (1100 + 100 * random.Uniform())};
      // A sum of three is roughly normal; its standard deviation is 5 %.
      const double noise = random.Uniform() + random.Uniform() + random.Uniform() - 1.5;
      model.Observe(shape, static_cast<uint64_t>(truth.Ms(shape) * (1 + 0.1 * noise) * 1e6));
    };
    for (int rows = 1; rows <= 140; ++rows) {
      step(rows);
      step(rows);
    }
    for (int i = 0; i < 6000; ++i) {
      step(130 + static_cast<double>(random.Below(16)));
      if (i % 100 != 0) continue;
      for (const double rows : {70.0, 140.0}) {
        const StepShape shape{0, 0, rows, rows * 1150};
        ASSERT_NEAR(model.Cost().StepMs(shape), truth.Ms(shape), 0.08 * truth.Ms(shape))
            << rows << " rows after " << i << " steps, seed " << seed;
      }
    }
  }
}

// In the first few steps noise outweighs the effect of rows, and some costs seem negative. That
// must not last: three seconds later the planner uses these costs.
TEST(StepTimeModel, WhatNoiseSaysAtFirstIsForgotten) {
  const Truth truth{3.35, 0, 0, 0.02, 3.4e-5};
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    StepTimeModel model;
    SplitMix64 random(seed);
    for (int i = 0; i < 300; ++i) {
      const double rows = 1 + std::floor(i / 4.0);
      const StepShape shape{0, 0, rows, rows * (1024 + i % 40)};
      const double noise = random.Uniform() + random.Uniform() + random.Uniform() - 1.5;
      model.Observe(shape, static_cast<uint64_t>(truth.Ms(shape) * (1 + 0.1 * noise) * 1e6));
    }
    const auto part = [](const auto& ms) {
      return ms({0, 0, 60, 60 * 1150.0}) / ms({0, 0, 120, 120 * 1150.0});
    };
    const double want = part([&](const StepShape& s) { return truth.Ms(s); });
    const StepCost cost = model.Cost();
    EXPECT_NEAR(part([&](const StepShape& s) { return cost.StepMs(s); }), want, 0.06 * want)
        << "seed " << seed << ", base " << cost.decode.base_ms;
  }
}

// The process was paused in one of the first steps, when every sample counts in full.
TEST(StepTimeModel, AnEarlyPauseIsForgottenWithinAFewSteps) {
  const Truth truth{2.4, 0, 0, 0.02, 3e-5};
  for (int pause = 0; pause < 7; ++pause) {
    StepTimeModel model;
    for (int i = 0; i < pause + 4; ++i) {
      const StepShape shape{0, 0, 1.0 + i % 2, 80.0 + i};
      model.Observe(shape, static_cast<uint64_t>((i == pause ? 2000 : truth.Ms(shape)) * 1e6));
    }
    const StepShape next{0, 0, 1, 90};
    EXPECT_LT(model.Cost().StepMs(next), 3 * truth.Ms(next)) << "paused in step " << pause;
  }
}

TEST(StepTimeModel, OutliersDoNotMoveTheFitFar) {
  const Truth truth{5, 0.1, 1e-6, 0.2, 1e-5};
  StepTimeModel model;
  Feed(model, truth, 500, 5);
  Feed(model, truth, 500, 6, 0.02, 0.02);
  ExpectClose(model, truth, 0.25);
}

// The prior, scaled by the first step of this device.
TEST(StepTimeModel, DirectionsThatAreNeverSeenKeepThePrior) {
  StepTimeModel model;
  const StepShape prompt{256, 256 * 257 / 2.0, 0, 0};
  const double scale = 20 / StepCost{}.StepMs(prompt);
  for (int i = 0; i < 20000; ++i) model.Observe(prompt, 20'000'000);
  const StepCost cost = model.Cost();
  EXPECT_DOUBLE_EQ(cost.prefill.per_row_ms, scale * StepCost{}.prefill.per_row_ms);
  EXPECT_DOUBLE_EQ(cost.decode.base_ms, scale * StepCost{}.decode.base_ms);
  EXPECT_NEAR(cost.StepMs(prompt), 20, 0.5);
}

TEST(StepTimeModel, AKindThatAWorkerHasNotRunIsTakenFromTheOthers) {
  const Truth truth{3, 0.01, 1e-7, 0.02, 1e-6};
  StepTimeModel pool, own;
  Feed(pool, truth, 400, 7);
  for (int i = 0; i < 100; ++i) own.Observe({0, 0, 4, 4000}, 9'000'000);
  const StepCost cost = own.CostWith(pool);
  const StepShape prompt{300, 300 * 301 / 2.0, 4, 4000};
  EXPECT_NEAR(cost.StepMs(prompt), truth.Ms(prompt), 0.1 * truth.Ms(prompt));
  EXPECT_NEAR(cost.StepMs({0, 0, 4, 4000}), 9, 0.2) << "what it ran itself is its own";
}

// All steps of a full worker hold prefill rows. Those without, at the start, had few rows.
TEST(StepTimeModel, RowsBesidePromptsTellWhatManyRowsCost) {
  const Truth truth{3.35, 0.0135, 6.8e-7, 0.02, 3.4e-5};
  const StepShape full{0, 0, 150, 150 * 2300};
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SplitMix64 random(seed);
    StepTimeModel model;
    const auto step = [&](double rows, double tokens) {
      const StepShape shape{tokens, tokens * tokens / 2, rows,
                            rows * (2050 + 400 * random.Uniform())};
      model.Observe(shape,
                    static_cast<uint64_t>(truth.Ms(shape) * (0.9 + 0.2 * random.Uniform()) * 1e6));
    };
    for (int i = 0; i < 70; ++i) step(1 + static_cast<double>(random.Below(5)), 0);
    for (int i = 0; i < 400; ++i) step(5 + i * 0.36, 1500 + static_cast<double>(random.Below(500)));
    EXPECT_NEAR(model.Cost().StepMs(full), truth.Ms(full), 0.35 * truth.Ms(full)) << seed;
  }
}

TEST(StepTimeModel, NonsenseSamplesAreIgnored) {
  StepTimeModel model;
  model.Observe({}, 1000);
  model.Observe({10, 55, 1, 100}, 0);
  model.Observe({10, 55, 1, 100}, UINT64_MAX);
  EXPECT_EQ(model.samples(), 0u);
}

TEST(StepTimeModel, CostsAreNeverNegative) {
  StepTimeModel model;
  SplitMix64 random(9);
  for (int i = 0; i < 5000; ++i) {
    model.Observe(RandomShape(random), 1 + random.Below(1'000'000'000));
    const StepCost cost = model.Cost();
    for (const double c :
         {cost.decode.base_ms, cost.decode.per_row_ms, cost.decode.per_context_ms,
          cost.prefill.base_ms, cost.prefill.per_token_ms, cost.prefill.per_prefill_context_ms,
          cost.prefill.per_row_ms, cost.prefill.per_context_ms}) {
      ASSERT_GE(c, 0);
      ASSERT_TRUE(std::isfinite(c));
    }
  }
}

TEST(RunningMean, FollowsAndIsNotCarriedAwayByOneValue) {
  const Instant now{1'000'000};
  RunningMean mean(0);
  for (int i = 0; i < 200; ++i) mean.Add(i % 2 == 0 ? 9 : 11, now);
  EXPECT_NEAR(mean.Value(now), 10, 0.5);
  mean.Add(1e6, now);
  EXPECT_NEAR(mean.Value(now), 10, 1);
  for (int i = 0; i < 500; ++i) mean.Add(i % 2 == 0 ? 29 : 31, now);
  EXPECT_NEAR(mean.Value(now), 30, 1);
}

TEST(RunningMean, LeavesAValueThatWasAlwaysTheSame) {
  const Instant now{1'000'000};
  RunningMean mean(0);
  for (int i = 0; i < 1000; ++i) mean.Add(0, now);
  for (int i = 0; i < 300; ++i) mean.Add(5, now);
  EXPECT_NEAR(mean.Value(now), 5, 0.5);
}

TEST(RunningMean, FadesToItsStartWithoutValues) {
  using std::chrono::seconds;
  Instant now{1'000'000};
  RunningMean mean(1);
  for (int i = 0; i < 100; ++i) mean.Add(i % 2 == 0 ? 4 : 6, now);
  EXPECT_NEAR(mean.Value(now + seconds(1)), 5, 0.3);
  EXPECT_NEAR(mean.Spread(now + seconds(1)), 1, 0.3);
  EXPECT_NEAR(mean.Value(now + seconds(4)), 3, 0.3);
  EXPECT_NEAR(mean.Value(now + seconds(60)), 1, 1e-3);
  EXPECT_NEAR(mean.Spread(now + seconds(60)), 0, 1e-3);
  // It continues from there.
  now = now + seconds(60);
  mean.Add(1, now);
  EXPECT_NEAR(mean.Value(now), 1, 0.1);
}

}  // namespace
}  // namespace aisp
