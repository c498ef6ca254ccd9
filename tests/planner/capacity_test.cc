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

// As much computing for as many tokens: of few long prompts some streams have two beside them,
// where of many short ones all have about as many.
TEST(Capacity, FewLongPromptsBesideStreamsCostMoreThanManyShortOnes) {
  Machine card = Card();
  card.cost.prefill.per_prefill_context_ms = 0;
  card.chunk_tokens = 1024;
  const double small = Headroom(LoadOf(32, 1024, 32), card, {0, 4}, {5000, 12});
  const double large = Headroom(LoadOf(4, 8192, 256), card, {0, 4}, {5000, 12});
  const double few = Headroom(LoadOf(4, 8192, 32), card, {0, 4}, {5000, 12});
  EXPECT_LT(few, 0.9 * small);
  EXPECT_LT(few, 0.9 * large);
}

// Of a load that is too much for either: streams of workers that compute all prompts are all late,
// where prompts wait before a prefill worker most are in time.
TEST(Capacity, WhatIsTooMuchIsServedInTimeInPart) {
  const Machine card = Card();
  const double most = 100 * Headroom(LoadOf(100, 1024, 256), card, {0, 4}, kLimits);
  const Load load = LoadOf(1.15 * most, 1024, 256);
  EXPECT_LT(Headroom(load, card, {1, 3}, kLimits), 1);
  EXPECT_LT(InTime(load, card, {0, 4}, kLimits), 0.1);
  EXPECT_GT(InTime(load, card, {1, 3}, kLimits), 0.25);
  EXPECT_EQ(BestInTime(load, card, 4, kLimits).split, (Split{1, 3}));
  const Load little = LoadOf(0.5 * most, 1024, 256);
  EXPECT_GT(InTime(little, card, {0, 4}, kLimits), 0.99);
  EXPECT_EQ(InTime(little, card, {4, 0}, kLimits), 0) << "nobody decodes";
  EXPECT_EQ(InTime({}, card, {1, 3}, kLimits), 1);
}

}  // namespace
}  // namespace aisp::planner
