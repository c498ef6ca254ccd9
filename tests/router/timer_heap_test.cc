#include "router/timer_heap.h"

#include <map>

#include <gtest/gtest.h>

#include "common/random.h"

namespace aisp {
namespace {

TEST(TimerHeap, AgreesWithASortedMapUnderRandomUse) {
  TimerHeap heap;
  std::map<uint64_t, Instant> model;
  SplitMix64 random(11);
  for (int i = 0; i < 20000; ++i) {
    const uint64_t key = random.Below(200);
    switch (random.Below(4)) {
      case 0:
      case 1: {
        const Instant when{static_cast<int64_t>(random.Below(1000))};
        heap.Set(key, when);
        model[key] = when;
        break;
      }
      case 2:
        heap.Erase(key);
        model.erase(key);
        break;
      default: {
        const Instant now{static_cast<int64_t>(random.Below(300))};
        uint64_t popped = 0;
        const bool due = heap.PopDue(now, &popped);
        Instant least = kNever;
        uint64_t least_key = 0;
        for (auto [k, when] : model) {
          if (when < least) least = when, least_key = k;
        }
        ASSERT_EQ(due, least <= now);
        if (due) {
          ASSERT_EQ(popped, least_key);
          model.erase(popped);
        }
      }
    }
    ASSERT_EQ(heap.size(), model.size());
    Instant next = kNever;
    for (auto [k, when] : model) next = std::min(next, when);
    ASSERT_EQ(heap.Next(), next);
  }
}

}  // namespace
}  // namespace aisp
