// Prefix blocks promoted from lower tiers, through the engine; the tokens verify the KV.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/engine/tiered_engine.h"

namespace aisp {
namespace {

using namespace std::chrono_literals;

TEST(EngineTiers, APrefixThatLeftTheDeviceComesBackFromHostMemory) {
  TieredEngine t(Small(), 64);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  ASSERT_EQ(t.harness.engine.blocks().MatchLength(t.harness.engine.RootOf(""), prompt, 100), 0);
  const SequenceId again = t.Ask(prompt);
  t.Run();
  EXPECT_EQ(t.Cached(again), 96);
  EXPECT_EQ(t.Host().loaded, 6u);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

TEST(EngineTiers, OfAPromptThatComesBackAsAWholeOneTokenIsComputed) {
  TieredEngine t(Small(), 64);
  const auto prompt = SomeTokens(96, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  const uint64_t rows = t.harness.executor.rows_computed();
  const SequenceId again = t.Ask(prompt, 1);
  t.Run();
  EXPECT_EQ(t.Cached(again), 95);
  EXPECT_EQ(t.Host().loaded, 6u);
  EXPECT_EQ(t.harness.executor.rows_computed(), rows + 1);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

TEST(EngineTiers, ADiskKeepsPrefixesForTheNextProcess) {
  FakeDisk disk;
  const auto prompt = SomeTokens(100, 1);
  {
    TieredEngine t(Small(), 8, &disk, 32);
    t.Ask(prompt);
    t.Run();
    EXPECT_EQ(t.Disk().stored, 6u);
  }
  TieredEngine t(Small(), 8, &disk, 32);
  const SequenceId again = t.Ask(prompt);
  t.Run();
  EXPECT_EQ(t.Cached(again), 96);
  EXPECT_EQ(t.Disk().loaded, 6u);
  EXPECT_EQ(t.Host().blocks, 6) << "what came from the disk lies in host memory too";
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

TEST(EngineTiers, ADiskAloneIsWrittenFromThePool) {
  FakeDisk disk;
  TieredEngine t(Small(), 0, &disk, 32);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  const SequenceId again = t.Ask(prompt);
  t.Run();
  EXPECT_EQ(t.Cached(again), 96);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

TEST(EngineTiers, AnotherTenantFindsNothing) {
  TieredEngine t(Small(), 64);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  SequenceRequest other = MakeRequest(prompt, 4);
  other.cache_scope = "somebody else";
  const SequenceId id = t.harness.Add(other);
  t.Run();
  EXPECT_EQ(t.Cached(id), 0);
  EXPECT_EQ(t.Host().loaded, 0u);
  t.harness.ExpectAllOracle();
}

TEST(EngineTiers, ADamagedBlockIsAMissFromThereOn) {
  FakeDisk disk;
  TieredEngine t(Small(), 0, &disk, 64);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  const SequenceId again = t.Ask(prompt);
  ASSERT_EQ(t.io.jobs().size(), 6u);
  t.io.Finish(3, DataLoss("a bit has flipped"));
  t.Run();
  EXPECT_EQ(t.Cached(again), 48);
  EXPECT_EQ(t.Disk().corrupt, 1u);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
  // It was forgotten, computed and stored again.
  t.PushOut(3);
  const SequenceId third = t.Ask(prompt);
  t.Run();
  EXPECT_EQ(t.Cached(third), 96);
  t.harness.ExpectAllOracle();
}

TEST(EngineTiers, AnErrorOfTheDiskIsAMissAndTheBlockStays) {
  FakeDisk disk;
  TieredEngine t(Small(), 0, &disk, 64);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  const SequenceId again = t.Ask(prompt);
  while (!t.io.jobs().empty()) t.io.Finish(0, Unavailable("input/output error"));
  t.Run();
  EXPECT_EQ(t.Cached(again), 0);
  EXPECT_EQ(t.Disk().errors, 6u);
  t.PushOut(3);
  const SequenceId third = t.Ask(prompt);
  t.Run();
  EXPECT_EQ(t.Cached(third), 96);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

TEST(EngineTiers, WritesThatFailAreForgotten) {
  FakeDisk disk;
  TieredEngine t(Small(), 0, &disk, 64);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.RunAlone();
  ASSERT_GT(t.io.jobs().size(), 0u);
  while (!t.io.jobs().empty()) t.io.Finish(0, ResourceExhausted("no space left on device"));
  t.Run();
  EXPECT_EQ(t.Disk().blocks, 0);
  EXPECT_GT(t.Disk().errors, 0u);
  t.PushOut(2);
  const SequenceId again = t.Ask(prompt);
  t.Run();
  EXPECT_EQ(t.Cached(again), 0);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

TEST(EngineTiers, AFullQueueDropsWritesAndLoads) {
  TieredEngine t(Small(), 64);
  t.io.room = 3;
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.RunAlone();
  EXPECT_GT(t.Host().dropped_writes, 0u);
  t.Run();
  t.PushOut(2);
  t.io.room = 1;
  const SequenceId again = t.Ask(prompt);
  t.Run();
  EXPECT_EQ(t.Cached(again), 16) << "one load was taken, the rest computed";
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

TEST(EngineTiers, NobodyWaitsForATierBeyondItsTime) {
  TieredEngine t(Small(), 64);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  const SequenceId again = t.Ask(prompt);
  ASSERT_EQ(t.io.jobs().size(), 6u);
  t.RunAlone();
  EXPECT_FALSE(t.harness.outcomes[again].ended) << "it waits";
  const Instant until = t.harness.engine.NextDeadline();
  ASSERT_NE(until, kNever);
  t.harness.clock.Set(until);
  t.harness.engine.Expire(until);
  t.RunAlone();
  t.harness.ExpectOracle(again);
  EXPECT_EQ(t.Cached(again), 0);
  // The late promotion is useless; it returns its blocks.
  t.Run();
  t.harness.ExpectIdle();
}

// It publishes below blocks that came from the tier meanwhile, which then cannot be evicted: it
// restarts, once no tier job in flight could free a block.
TEST(EngineTiers, ACopyThatComesBesideItsOwnStarvesNobody) {
  TieredEngine t(Small(), 64);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  const SequenceId again = t.Ask(prompt, 100);
  Engine& engine = t.harness.engine;
  const Instant until = engine.NextDeadline();
  t.harness.clock.Set(until);
  engine.Expire(until);
  ASSERT_TRUE(engine.Launch().has_value());
  t.io.FinishAll();
  engine.PollTiers();
  t.harness.Take(engine.Collect());
  t.RunAlone();
  ASSERT_FALSE(t.harness.outcomes[again].ended) << "it holds its copy, and the other one's blocks";
  ASSERT_FALSE(t.io.jobs().empty());
  t.Run();
  EXPECT_EQ(engine.Preemptions(), 1u);
  t.harness.ExpectOracle(again);
  t.harness.ExpectIdle();
}

TEST(EngineTiers, WhoWantsTheSamePrefixWaitsForTheSamePromotion) {
  TieredEngine t(Small(), 64);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  const SequenceId first = t.Ask(prompt);
  const SequenceId second = t.Ask(prompt);
  EXPECT_EQ(t.io.jobs().size(), 6u);
  t.Run();
  EXPECT_EQ(t.Cached(first), 96);
  EXPECT_EQ(t.Cached(second), 96);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

TEST(EngineTiers, CancellingAtAnyPointGivesEveryBlockBack) {
  for (size_t finished = 0; finished <= 6; ++finished) {
    for (const bool failing : {false, true}) {
      TieredEngine t(Small(), 64);
      const auto prompt = SomeTokens(100, 1);
      t.Ask(prompt);
      t.Run();
      t.PushOut(2);
      const SequenceId again = t.Ask(prompt);
      ASSERT_EQ(t.io.jobs().size(), 6u);
      for (size_t i = 0; i < finished; ++i) {
        const bool fails = failing && i + 1 == finished;
        t.io.Finish(0, fails ? Status(DataLoss("damaged")) : Status());
        t.harness.engine.PollTiers();
        t.harness.engine.CheckInvariants();
      }
      t.harness.engine.Cancel(again);
      t.harness.outcomes.erase(again);
      t.Run();
      t.harness.ExpectAllOracle();
      t.harness.ExpectIdle();
    }
  }
}

TEST(EngineTiers, ATierSlowerThanComputingIsLeftAloneButMeasured) {
  TieredEngine t(Small(), 64);
  std::vector<std::vector<TokenId>> prompts;
  for (uint64_t i = 0; i < 3; ++i) prompts.push_back(SomeTokens(15 * 16, 10 + i));
  // A step of 1 ms computes 128 tokens; a block of 16 from this tier takes 20 ms.
  int32_t late_hits = 0;
  for (int round = 0; round < 60; ++round) {
    const SequenceId id = t.Ask(prompts[static_cast<size_t>(round) % 3], 1);
    for (int i = 0; i < 10000; ++i) {
      const bool moved = t.StepInTime(1ms);
      const bool copying = !t.io.jobs().empty();
      while (!t.io.jobs().empty()) t.io.Finish(0, {}, 20ms);
      t.harness.engine.PollTiers();
      if (!moved && !copying) break;
    }
    if (round >= 10 && t.Cached(id) > 16) ++late_hits;
  }
  EXPECT_EQ(late_hits, 0);
  EXPECT_GT(t.harness.engine.tiers()->promotions().declined, 40u);
  EXPECT_GE(t.harness.engine.tiers()->promotions().probes, 1u);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

// A disk with `prompt`'s blocks, and an engine with known step times: 1 ms for 128 tokens.
struct AfterARestart {
  explicit AfterARestart(const std::vector<TokenId>& prompt, double disk_load_seconds) {
    {
      TieredEngine before(Small(), 0, &disk, 32);
      before.Ask(prompt);
      before.Run();
    }
    t.emplace(Small(), 0, &disk, 32, nullptr, disk_load_seconds);
    t->Ask(SomeTokens(128, 77), 1);
    while (t->StepInTime(1ms)) {
    }
  }
  FakeDisk disk;
  std::optional<TieredEngine> t;
};

TEST(EngineTiers, NobodyWaitsForADiskOfWhichNothingIsKnown) {
  const auto prompt = SomeTokens(100, 1);
  AfterARestart world(prompt, 0);
  TieredEngine& t = *world.t;
  const SequenceId again = t.Ask(prompt, 1);
  const SequenceId other = t.Ask(prompt, 1);
  const auto loads = std::count_if(t.io.jobs().begin(), t.io.jobs().end(), [](const TierJob& job) {
    return job.to.place == TierPlace::kPool;
  });
  EXPECT_EQ(loads, 1) << "one block, for the measurement";
  while (t.StepInTime(1ms)) {
  }
  EXPECT_TRUE(t.harness.outcomes[again].ended);
  EXPECT_TRUE(t.harness.outcomes[other].ended);
  t.Run();
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
}

// How long a request waits for 100 blocks on a disk from which one takes `load_seconds`; by the
// engine's measurement computing them takes 25 ms.
Duration WaitForBlocks(double load_seconds) {
  const auto prompt = SomeTokens(1600, 1);
  FakeDisk disk;
  const ProvenanceOptions model = SmallModel(1, 128);
  {
    TieredEngine before(model, 0, &disk, 128);
    before.Ask(prompt);
    before.Run();
  }
  TieredEngine t(model, 0, &disk, 128, nullptr, load_seconds);
  t.Ask(SomeTokens(128, 77), 1);
  while (t.StepInTime(1ms)) {
  }
  const SequenceId again = t.Ask(prompt, 1);
  EXPECT_FALSE(t.io.jobs().empty());
  const Duration wait = t.harness.engine.NextDeadline() - t.harness.clock.Now();
  t.Run();
  EXPECT_GT(t.Cached(again), 0);
  t.harness.ExpectAllOracle();
  t.harness.ExpectIdle();
  return wait;
}

TEST(EngineTiers, AWaitIsAFewTimesWhatFetchingShouldTake) {
  const Duration wait = WaitForBlocks(60e-6);  // 6.2 ms in all
  EXPECT_GE(wait, 12ms);
  EXPECT_LE(wait, 13ms);
}

// A fetch that is ten times late on a busy machine still saves most of the computing.
TEST(EngineTiers, AWaitIsAtLeastAQuarterOfWhatComputingShouldTake) {
  const Duration wait = WaitForBlocks(1e-6);  // 0.3 ms in all
  EXPECT_GE(wait, 6ms);
  EXPECT_LE(wait, 6500us);
}

TEST(EngineTiers, APrefillForAReaderWaitsForItsPromotionToo) {
  struct Sink final : LayerSink {
    void OnLayer(int32_t, std::span<const LayerSlice>) override {}
  } sink;
  TieredEngine t(Small(), 64, nullptr, 0, &sink);
  const auto prompt = SomeTokens(100, 1);
  t.Ask(prompt);
  t.Run();
  t.PushOut(2);
  SequenceRequest request;
  request.tokens = prompt;
  request.kv_source = KvSource::kPrefillOnly;
  const SequenceId id = t.harness.Add(request);
  t.harness.engine.OpenGate(id);
  EXPECT_EQ(t.harness.engine.ComputedTokens(id), 0);
  t.RunAlone();
  EXPECT_FALSE(t.harness.outcomes[id].prefill_done);
  t.Run();
  EXPECT_TRUE(t.harness.outcomes[id].prefill_done);
  EXPECT_EQ(t.Host().loaded, 6u);
  EXPECT_TRUE(t.harness.executor.Holds(prompt, t.harness.engine.BlocksOf(id), 0, 99));
  t.harness.engine.Release(id);
  t.harness.outcomes.erase(id);
  t.Run();
  t.harness.ExpectIdle();
}

// Everything at once: small tiers, shared prefixes, faults, cancels, both depths.
TEST(EngineTiers, RandomLoadsWithFaultsBringTheOraclesTokens) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SplitMix64 random(seed);
    FakeDisk disk;
    uint64_t loaded = 0;
    for (int process = 0; process < 2; ++process) {
      const bool host = random.Below(4) != 0;
      TieredEngine t(SmallModel(1 + static_cast<int32_t>(seed % 2), 24), host ? 12 : 0, &disk, 48);
      std::vector<SequenceId> alive;
      int added = 0;
      for (int i = 0; i < 4000; ++i) {
        if (added < 60 && random.Below(3) == 0) {
          auto prompt =
              SomeTokens(16 * static_cast<int32_t>(1 + random.Below(10)), 100 + random.Below(5));
          const auto tail = SomeTokens(static_cast<int32_t>(random.Below(20)), random.Next());
          prompt.insert(prompt.end(), tail.begin(), tail.end());
          alive.push_back(t.Ask(prompt, static_cast<int32_t>(1 + random.Below(20))));
          ++added;
        }
        if (!alive.empty() && random.Below(40) == 0) {
          const SequenceId gone = alive[random.Below(alive.size())];
          if (t.harness.engine.Alive(gone)) {
            t.harness.engine.Cancel(gone);
            t.harness.ExpectOraclePrefix(gone);
            t.harness.outcomes.erase(gone);
          }
        }
        while (!t.io.jobs().empty() && random.Below(3) != 0) {
          const uint64_t luck = random.Below(20);
          const Status status = luck == 0   ? Status(DataLoss("damaged"))
                                : luck == 1 ? Status(Unavailable("input/output error"))
                                            : Status();
          t.io.Finish(random.Below(t.io.jobs().size()), status);
        }
        if (random.Below(2) == 0) t.harness.engine.PollTiers();
        t.harness.engine.Expire(t.harness.clock.Now());
        t.harness.Step();
        if (added == 60 && t.io.jobs().empty() && !t.harness.engine.InFlight() &&
            t.harness.engine.NumRunning() + t.harness.engine.NumWaiting() == 0)
          break;
      }
      t.Run();
      loaded += t.Host().loaded + t.Disk().loaded;
      t.harness.ExpectAllOracle();
      t.harness.ExpectIdle();
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed;
    }
    EXPECT_GT(loaded, 0u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace aisp
