#include "kvcache/tiers/tier_contents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "common/random.h"

namespace aisp {
namespace {

// Blocks of two units; those with the same `first` share it.
BlockUnits Units(uint64_t first, uint64_t second) {
  BlockUnits units{};
  units[0] = {first, 1};
  units[1] = {second, 2};
  return units;
}

// The view of a reader of all events.
class Listener {
 public:
  void Hear(TierContents& contents) {
    uint64_t first = 0;
    const auto events = contents.TakeEvents(&first);
    EXPECT_EQ(first, next_);
    next_ += events.size();
    for (const KvCacheEvent& event : events) {
      for (const Hash128& unit : event.unit_hashes) {
        if (event.kind == KvCacheEvent::Kind::kStored) {
          known_.insert({unit.lo, unit.hi});
        } else {
          EXPECT_EQ(known_.erase({unit.lo, unit.hi}), 1u) << "gone, and was not there";
        }
      }
    }
  }
  size_t known() const { return known_.size(); }
  void ExpectSnapshot(const TierContents& contents) const {
    uint64_t next = 0;
    std::set<std::pair<uint64_t, uint64_t>> all;
    for (const KvCacheEvent& event : contents.SnapshotEvents(&next)) {
      for (const Hash128& unit : event.unit_hashes) all.insert({unit.lo, unit.hi});
    }
    EXPECT_EQ(next, next_);
    EXPECT_EQ(all, known_);
  }

 private:
  uint64_t next_ = 0;
  std::set<std::pair<uint64_t, uint64_t>> known_;
};

TEST(TierContents, ABlockIsToldWhenItIsThereAndWhenItMakesRoom) {
  TierContents contents(2, 32);
  Listener listener;
  contents.Take(0, Units(1, 10));
  listener.Hear(contents);
  EXPECT_EQ(listener.known(), 0u) << "it is still being copied";
  contents.Filled(0);
  listener.Hear(contents);
  EXPECT_EQ(listener.known(), 2u);
  contents.Take(0, Units(2, 20));
  listener.Hear(contents);
  EXPECT_EQ(listener.known(), 0u);
  contents.Drop(0);
  listener.Hear(contents);
  EXPECT_EQ(listener.known(), 0u);
}

TEST(TierContents, AUnitOfTwoBlocksIsGoneWithTheLastOfThem) {
  TierContents contents(2, 32);
  Listener listener;
  for (int32_t slot = 0; slot < 2; ++slot) {
    contents.Take(slot, Units(1, 10 + static_cast<uint64_t>(slot)));
    contents.Filled(slot);
  }
  listener.Hear(contents);
  EXPECT_EQ(listener.known(), 3u);
  contents.Drop(0);
  listener.Hear(contents);
  EXPECT_EQ(listener.known(), 2u);
  contents.Drop(1);
  listener.Hear(contents);
  EXPECT_EQ(listener.known(), 0u);
}

TEST(TierContents, WhatNobodyKnewTheUnitsOfIsNotToldOf) {
  TierContents contents(1, 32);
  Listener listener;
  contents.Take(0, {});
  contents.Filled(0);
  contents.Drop(0);
  listener.Hear(contents);
  EXPECT_EQ(listener.known(), 0u);
}

TEST(TierContents, EventsAndSnapshotsSayTheSame) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SplitMix64 random(seed);
    TierContents contents(8, 32);
    Listener listener;
    std::vector<int> state(8, 0);  // 0: free, 1: filling, 2: resident
    for (int i = 0; i < 500; ++i) {
      const auto slot = static_cast<int32_t>(random.Below(8));
      int& s = state[static_cast<size_t>(slot)];
      if (s == 1 && random.Below(4) != 0) {
        contents.Filled(slot);
        s = 2;
      } else if (random.Below(3) == 0) {
        contents.Drop(slot);
        s = 0;
      } else {
        contents.Take(slot, Units(random.Below(4), 100 + random.Below(6)));
        s = 1;
      }
      if (random.Below(5) == 0) listener.Hear(contents);
    }
    listener.Hear(contents);
    listener.ExpectSnapshot(contents);
  }
}

}  // namespace
}  // namespace aisp
