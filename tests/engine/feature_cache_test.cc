#include "engine/feature_cache.h"

#include <gtest/gtest.h>

#include "tests/engine/engine_harness.h"

namespace aisp {
namespace {

constexpr int32_t kSize = 2;
constexpr size_t kUnitBytes = FeatureCache::kUnit * kSize * sizeof(float);
const Hash128 kRoot{1, 2};

// Rows of positions [begin, end): each holds its position and a mark.
std::vector<float> Rows(int32_t begin, int32_t end, float mark = 0) {
  std::vector<float> rows;
  for (int32_t p = begin; p < end; ++p) {
    rows.push_back(static_cast<float>(p));
    rows.push_back(mark);
  }
  return rows;
}

void Keep(FeatureCache& cache, const std::vector<TokenId>& tokens, int32_t begin, int32_t end,
          float mark = 0) {
  FeatureTail tail;
  cache.Append(kRoot, tokens, begin, Rows(begin, end, mark), &tail);
}

TEST(FeatureCache, GivesWhatWasKeptInPiecesWithoutAGap) {
  FeatureCache cache(kSize, 1 << 20);
  const std::vector<TokenId> tokens = SomeTokens(100, 1);
  FeatureTail tail;
  for (int32_t at = 21; at < 80; at += 7)  // positions are computed again, as after a preemption
    cache.Append(kRoot, tokens, at - 3, Rows(at - 3, at + 7), &tail);
  const FeatureRun run = cache.Before(kRoot, tokens, 30, 64);
  EXPECT_EQ(run.begin, 30);
  EXPECT_EQ(run.rows, Rows(30, 64));
  // The first unit lacks its first positions.
  EXPECT_EQ(cache.Before(kRoot, tokens, 0, 64).begin, 18);
  // The last unit is incomplete.
  EXPECT_TRUE(cache.Before(kRoot, tokens, 0, 90).rows.empty());
  EXPECT_TRUE(cache.Before({9, 9}, tokens, 0, 64).rows.empty());
  std::vector<TokenId> others = tokens;
  others[50] += 1;
  EXPECT_TRUE(cache.Before(kRoot, others, 0, 64).rows.empty());
  EXPECT_EQ(cache.Before(kRoot, others, 20, 48).rows, Rows(20, 48));
}

TEST(FeatureCache, BehindAGapTheRunBeginsAnew) {
  FeatureCache cache(kSize, 1 << 20);
  const std::vector<TokenId> tokens = SomeTokens(100, 1);
  FeatureTail tail;
  cache.Append(kRoot, tokens, 0, Rows(0, 20), &tail);
  cache.Append(kRoot, tokens, 40, Rows(40, 64), &tail);
  EXPECT_EQ(cache.Before(kRoot, tokens, 0, 64).begin, 40);
  EXPECT_EQ(cache.Before(kRoot, tokens, 0, 16).begin, 0);
  Keep(cache, tokens, 10, 64);  // adds the missing rows; the complete unit stays complete
  EXPECT_EQ(cache.Before(kRoot, tokens, 0, 64).begin, 0);
}

TEST(FeatureCache, WhatWasUsedLongestAgoGoesFirst) {
  FeatureCache cache(kSize, 3 * kUnitBytes);
  const std::vector<TokenId> a = SomeTokens(32, 1), b = SomeTokens(16, 2), c = SomeTokens(16, 3);
  Keep(cache, a, 0, 32);
  Keep(cache, b, 0, 16);
  EXPECT_EQ(cache.bytes(), 3 * kUnitBytes);
  EXPECT_EQ(cache.Before(kRoot, a, 0, 32).begin, 0);
  Keep(cache, c, 0, 16);
  EXPECT_EQ(cache.bytes(), 3 * kUnitBytes);
  EXPECT_TRUE(cache.Before(kRoot, b, 0, 16).rows.empty());
  EXPECT_EQ(cache.Before(kRoot, a, 0, 32).begin, 0);
}

}  // namespace
}  // namespace aisp
