#include "planner/capacity.h"

#include <gtest/gtest.h>

#include "tests/planner/card.h"

namespace aisp::planner {
namespace {

TEST(Capacity, GrowsWithWorkersAndShrinksWithTheLoad) {
  const Machine card = Card();
  const Load load = LoadOf(40, 1024, 256);
  const double four = Headroom(load, card, {0, 4}, kLimits);
  EXPECT_GT(four, 1);
  EXPECT_GT(Headroom(load, card, {0, 8}, kLimits), 1.9 * four);
  EXPECT_NEAR(Headroom(LoadOf(80, 1024, 256), card, {0, 4}, kLimits), four / 2, four * 0.02);
  EXPECT_EQ(Headroom(load, card, {4, 0}, kLimits), 0) << "nobody decodes";
  EXPECT_EQ(Headroom({}, card, {1, 1}, kLimits), kPlenty);
}

TEST(Capacity, LongPromptsWantMorePrefillWorkersThanLongAnswers) {
  const Machine card = Card();
  const Split prompts = BestSplit(LoadOf(10, 6000, 128), card, 8, {1500, 12}).split;
  const Split answers = BestSplit(LoadOf(10, 256, 1024), card, 8, {1500, 12}).split;
  EXPECT_GT(prompts.prefill, answers.prefill);
  EXPECT_EQ(prompts.workers(), 8);
  EXPECT_GT(answers.decode, 0);
}

TEST(Capacity, WhatIsCachedNeedsNoPrefill) {
  const Machine card = Card();
  Load cached = LoadOf(10, 6000, 128);
  cached.uncached_tokens = 200;
  EXPECT_GT(Headroom(cached, card, {0, 4}, {1500, 12}),
            2 * Headroom(LoadOf(10, 6000, 128), card, {0, 4}, {1500, 12}));
}

// The same computing for the same tokens: with few long prompts some streams meet two of them, with
// many short ones all streams meet about as many. The TTFT leaves little time to wait.
TEST(Capacity, FewLongPromptsBesideStreamsCostMoreThanManyShortOnes) {
  Machine card = Card();
  card.cost.prefill.per_prefill_context_ms = 0;
  card.cost.prefill.base_ms = 10;
  card.chunk_tokens = 1024;
  const double small = Headroom(LoadOf(32, 1024, 32), card, {0, 4}, {300, 12});
  const double large = Headroom(LoadOf(4, 8192, 256), card, {0, 4}, {300, 12});
  const double few = Headroom(LoadOf(4, 8192, 32), card, {0, 4}, {300, 12});
  EXPECT_LT(few, 0.9 * small);
  EXPECT_LT(few, 0.9 * large);
}

// Streams that meet more prompts than usual would be late; if these prompts wait a little, they are
// not.
TEST(Capacity, PromptsThatWaitLeaveStreamsTheirTime) {
  Machine card = Card();  // an H100's costs
  card.cost.decode = {3.35, 0.02, 3.4e-5};
  card.cost.prefill = {1.7, 0.0135, 6.8e-7, 0.02, 3.4e-5};
  const Load load = LoadOf(100, 1024, 256);
  const double waits = Headroom(load, card, {0, 4}, kLimits);
  // A load that prefill alone saturates is not served, however long prompts wait.
  const StepCost& cost = card.cost;
  const double prompts_s = 1e-3 * cost.PromptMs(PromptWork::Of(0, 1024), card.chunk_tokens, {});
  EXPECT_LT(waits * load.requests_per_s, 4 / prompts_s);
  // If the TTFT limit equals one step, there is no time to wait.
  EXPECT_LT(Headroom(load, card, {0, 4}, {25, 12}), waits);
}

// The capacities that simulations of four workers with an H100's steps have (20 s, 300 / 12 ms).
// One prefill worker adds nothing there, though two and three do.
TEST(Capacity, OfAggregatedWorkersIsNotUnderestimatedNearTheTpotLimit) {
  Machine card = Card();
  card.chunk_tokens = 2048;
  card.cost.decode = {2.95, 0.02, 4.68e-5};
  card.cost.prefill = {4.2, 0.0116, 8.2e-7, 0.0095, 2.8e-5};
  const auto capacity = [&](double prompt, double answer, const Split& split) {
    return 10 * Headroom(LoadOf(10, prompt, answer), card, split, kLimits);
  };
  EXPECT_NEAR(capacity(3000, 64, {0, 4}), 55.6, 2);
  EXPECT_NEAR(capacity(1024, 256, {0, 4}), 100.2, 4);
  EXPECT_NEAR(capacity(2048, 64, {0, 4}), 85.3, 3);
  EXPECT_NEAR(capacity(3000, 64, {2, 2}), 58.5, 2);
  EXPECT_LT(capacity(3000, 64, {1, 3}), 1.04 * capacity(3000, 64, {0, 4}));
}

}  // namespace
}  // namespace aisp::planner
