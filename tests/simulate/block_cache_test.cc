#include "simulate/block_cache.h"

#include <gtest/gtest.h>

namespace aisp::simulate {
namespace {

std::vector<Hash128> Chain(uint64_t name, size_t blocks) {
  std::vector<Hash128> out;
  for (size_t i = 0; i < blocks; ++i) out.push_back({name * 1000 + i, name});
  return out;
}

// Takes the missing blocks of a prompt, publishes and releases all.
void Compute(BlockCache* cache, const std::vector<Hash128>& prompt) {
  const size_t held = cache->Match(prompt);
  cache->Use({prompt.data(), held});
  ASSERT_TRUE(cache->Take(static_cast<int64_t>(prompt.size() - held)));
  for (size_t i = held; i < prompt.size(); ++i) cache->Publish({&prompt[i], 1});
  cache->Release(prompt);
}

TEST(BlockCache, FindsWhatWasComputed) {
  BlockCache cache(8);
  const auto a = Chain(1, 3);
  Compute(&cache, a);
  EXPECT_EQ(cache.available(), 8);
  EXPECT_EQ(cache.Match(a), 3u);
  auto branch = a;
  branch[1] = {77, 77};
  EXPECT_EQ(cache.Match(branch), 1u);
  EXPECT_EQ(cache.Match(Chain(2, 2)), 0u);
}

TEST(BlockCache, TheLeastRecentlyUsedGoesFirstAndOfAPromptItsEnd) {
  BlockCache cache(6);
  const auto a = Chain(1, 3), b = Chain(2, 3);
  Compute(&cache, a);
  Compute(&cache, b);
  ASSERT_TRUE(cache.Take(1));
  EXPECT_EQ(cache.TakeEvicted(), std::vector<Hash128>{a[2]});
  EXPECT_EQ(cache.Match(a), 2u);
  EXPECT_EQ(cache.Match(b), 3u);
  cache.Return(1);
  EXPECT_EQ(cache.available(), 6);
}

TEST(BlockCache, WhatIsInUseStays) {
  BlockCache cache(4);
  const auto a = Chain(1, 3);
  Compute(&cache, a);
  cache.Use(a);
  EXPECT_EQ(cache.available(), 1);
  EXPECT_FALSE(cache.Take(2));
  EXPECT_TRUE(cache.Take(1));
  EXPECT_EQ(cache.Match(a), 3u);
  cache.Release(a);
  EXPECT_EQ(cache.available(), 3);
}

TEST(BlockCache, ContentThatIsThereAlreadyIsKeptOnce) {
  BlockCache cache(4);
  const auto a = Chain(1, 1);
  ASSERT_TRUE(cache.Take(2));
  EXPECT_TRUE(cache.Publish(a));
  EXPECT_FALSE(cache.Publish(a));
  EXPECT_EQ(cache.available(), 3);
  cache.Release(a);
  EXPECT_EQ(cache.available(), 3);
  cache.Release(a);
  EXPECT_EQ(cache.available(), 4);
}

}  // namespace
}  // namespace aisp::simulate
