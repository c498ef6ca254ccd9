// Prefixes that led to NaNs are forgotten in the tiers below the pool too.
#include <gtest/gtest.h>

#include "tests/engine/tiered_engine.h"

namespace aisp {
namespace {

TEST(EngineForgets, APrefixThatGaveNoNumbersIsForgottenInTheTiersToo) {
  FakeDisk disk;
  TieredEngine t(Small(), 64, &disk, 32);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  ASSERT_EQ(t.Host().blocks, 6);
  ASSERT_EQ(t.Disk().blocks, 6);
  t.harness.executor.row_fault = [](const SampleRow& row) -> Status {
    return row.params->seed == 666 ? Internal("the logits are not finite") : Status();
  };
  const SequenceId bad = t.harness.Add(MakeRequest(prompt, 2, /*seed=*/666));
  t.Run();
  EXPECT_EQ(t.harness.outcomes[bad].finish, FinishReason::kError);
  EXPECT_EQ(t.Host().blocks, 0);
  EXPECT_EQ(t.Disk().blocks, 0);
  t.harness.outcomes.erase(bad);
  const SequenceId next = t.Ask(prompt);
  t.Run();
  EXPECT_EQ(t.Cached(next), 0);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

// In flight from the pool to host memory, or back.
TEST(EngineForgets, WhatIsOnItsWayWhenItIsForgottenDoesNotArrive) {
  for (const bool back : {false, true}) {
    TieredEngine t(Small(), 64);
    const auto prompt = SomeTokens(100, 1);
    const SequenceId first = t.Ask(prompt, back ? 4 : 60);
    if (back) {
      t.Run();
      t.PushOut(2);
      t.Ask(prompt);
    } else {
      for (int i = 0; i < 4; ++i) t.harness.Step();
    }
    ASSERT_EQ(t.io.jobs().size(), 6u);
    t.harness.executor.row_fault = [](const SampleRow& row) -> Status {
      return row.params->seed == 666 ? Internal("the logits are not finite") : Status();
    };
    // Nothing waits for a tier here: the prompt is computed, or a prefix hit if `first` has it.
    const SequenceId bad = t.harness.Add(MakeRequest(prompt, 2, /*seed=*/666));
    for (int i = 0; i < 1000 && !t.harness.outcomes[bad].ended; ++i) {
      if (t.harness.Step()) continue;
      const Instant until = t.harness.engine.NextDeadline();
      ASSERT_NE(until, kNever);
      t.harness.clock.Set(until);
      t.harness.engine.Expire(until);
    }
    ASSERT_EQ(t.harness.outcomes[bad].finish, FinishReason::kError);
    t.harness.outcomes.erase(bad);
    t.io.FinishAll();
    t.harness.engine.PollTiers();
    t.harness.engine.CheckInvariants();
    const BlockManager& blocks = t.harness.engine.blocks();
    EXPECT_EQ(blocks.MatchLength(t.harness.engine.RootOf(""), prompt, 100), 0);
    t.Run();
    EXPECT_EQ(t.Host().blocks, back ? 16 : 0) << "those of the other prompt";
    t.harness.ExpectOracle(first);
    t.harness.ExpectIdle();
  }
}

}  // namespace
}  // namespace aisp
