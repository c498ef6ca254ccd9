#include "kvcache/tiers/tier_index.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "common/random.h"
#include "kvcache/tiers/tier_key.h"

namespace aisp {
namespace {

Hash128 Key(uint64_t n) { return {n * 0x9e3779b97f4a7c15u, n}; }

int32_t Fill(TierIndex& index, uint64_t key, uint64_t parent = 0, double cost = 1) {
  const int32_t slot = index.Take(Key(key), Key(parent), cost);
  if (slot != TierIndex::kNone) index.Filled(slot);
  index.CheckInvariants();
  return slot;
}

TEST(TierIndex, TheLeastRecentlyUsedMakesRoom) {
  TierIndex index(3);
  for (uint64_t key = 1; key <= 3; ++key) Fill(index, key);
  index.Touch(index.Find(Key(1)));
  Fill(index, 4);
  EXPECT_NE(index.Find(Key(1)), TierIndex::kNone);
  EXPECT_EQ(index.Find(Key(2)), TierIndex::kNone);
  EXPECT_EQ(index.evictions(), 1u);
}

TEST(TierIndex, WhatCostsMoreToComputeStaysLonger) {
  TierIndex index(2);
  Fill(index, 1, 0, 3);
  Fill(index, 2, 0, 1);
  Fill(index, 3, 0, 1);
  EXPECT_NE(index.Find(Key(1)), TierIndex::kNone) << "older, but dearer";
  EXPECT_EQ(index.Find(Key(2)), TierIndex::kNone);
  // But not for ever.
  for (uint64_t key = 4; key < 12; ++key) Fill(index, key, 0, 1);
  EXPECT_EQ(index.Find(Key(1)), TierIndex::kNone);
}

TEST(TierIndex, AChainGoesFromItsEnd) {
  TierIndex index(3);
  Fill(index, 1, 0, 1);
  Fill(index, 2, 1, 5);
  Fill(index, 3, 2, 9);
  Fill(index, 4);
  EXPECT_NE(index.Find(Key(1)), TierIndex::kNone);
  EXPECT_NE(index.Find(Key(2)), TierIndex::kNone);
  EXPECT_EQ(index.Find(Key(3)), TierIndex::kNone);
}

TEST(TierIndex, AParentDoesNotMakeRoomForItsChild) {
  TierIndex index(1);
  Fill(index, 1);
  EXPECT_EQ(index.Take(Key(2), Key(1), 1), TierIndex::kNone);
  EXPECT_NE(index.Find(Key(1)), TierIndex::kNone);
}

TEST(TierIndex, WhatIsHeldOrBeingFilledStays) {
  TierIndex index(2);
  index.Hold(Fill(index, 1));
  const int32_t filling = index.Take(Key(2), {}, 1);
  EXPECT_EQ(index.Find(Key(2)), TierIndex::kNone) << "not there yet";
  EXPECT_TRUE(index.Knows(Key(2)));
  EXPECT_EQ(index.Take(Key(3), {}, 1), TierIndex::kNone);
  index.Drop(filling);
  EXPECT_FALSE(index.Knows(Key(2)));
  EXPECT_NE(Fill(index, 3), TierIndex::kNone);
  index.CheckInvariants();
}

TEST(TierIndex, RandomUseKeepsItsInvariants) {
  SplitMix64 random(7);
  TierIndex index(12);
  std::vector<int32_t> filling;
  std::vector<int32_t> held;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t key = 1 + random.Below(40);
    switch (random.Below(6)) {
      case 0:
      case 1:
        if (index.Knows(Key(key))) break;
        if (const int32_t slot = index.Take(Key(key), Key(key / 2), 1.0 + key % 3); slot >= 0)
          filling.push_back(slot);
        break;
      case 2:
        if (filling.empty()) break;
        random.Below(4) == 0 ? index.Drop(filling.back()) : index.Filled(filling.back());
        filling.pop_back();
        break;
      case 3:
        if (const int32_t slot = index.Find(Key(key)); slot >= 0) index.Touch(slot);
        break;
      case 4:
        if (const int32_t slot = index.Find(Key(key)); slot >= 0 && held.size() < 4) {
          index.Hold(slot);
          held.push_back(slot);
        } else if (!held.empty()) {
          index.Unhold(held.back());
          held.pop_back();
        }
        break;
      default:
        if (const int32_t slot = index.Find(Key(key)); slot >= 0 && !index.Held(slot))
          index.Drop(slot);
    }
    index.CheckInvariants();
  }
  EXPECT_GT(index.evictions(), 100u);
}

TEST(TierHasher, ANameSaysAllThatStandsBefore) {
  TierHasher hasher;
  std::vector<TokenId> tokens(64);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
  std::vector<Hash128> all;
  hasher.Extend({1, 2}, tokens, 16, &all);
  ASSERT_EQ(all.size(), 4u);
  // Appended in pieces, the result is the same.
  std::vector<Hash128> pieces;
  hasher.Extend({1, 2}, std::span(tokens).first(40), 16, &pieces);
  EXPECT_EQ(pieces.size(), 2u);
  hasher.Extend({1, 2}, tokens, 16, &pieces);
  EXPECT_EQ(pieces, all);
  tokens[3] = 99;
  std::vector<Hash128> other;
  hasher.Extend({1, 2}, tokens, 16, &other);
  for (size_t i = 0; i < 4; ++i) EXPECT_NE(other[i], all[i]);
  std::vector<Hash128> scope;
  tokens[3] = 3;
  hasher.Extend({1, 3}, tokens, 16, &scope);
  for (size_t i = 0; i < 4; ++i) EXPECT_NE(scope[i], all[i]);
}

}  // namespace
}  // namespace aisp
