#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/random.h"
#include "engine/step_plan.h"

namespace aisp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kBlock = 16;

int32_t BlocksFor(int32_t tokens) { return (tokens + kBlock - 1) / kBlock; }

SequenceView Waiting(uint64_t arrival, int32_t tokens) {
  SequenceView v;
  v.id = SequenceId(arrival);
  v.arrival = arrival;
  v.target_tokens = tokens;
  return v;
}

SequenceView Prefilling(uint64_t arrival, int32_t tokens, int32_t computed) {
  SequenceView v = Waiting(arrival, tokens);
  v.phase = SequencePhase::kRunning;
  v.computed_tokens = computed;
  v.blocks_held = BlocksFor(tokens);
  return v;
}

// Its next token goes to position `tokens - 1`.
SequenceView Decoding(uint64_t arrival, int32_t tokens) {
  SequenceView v = Prefilling(arrival, tokens, tokens - 1);
  v.blocks_held = BlocksFor(tokens - 1);
  return v;
}

StepPlan Plan(std::vector<SequenceView> views, int32_t available,
              const ScheduleLimits& limits = {}) {
  return PlanStep(EngineSnapshot{views, available, kBlock}, limits);
}

std::vector<uint64_t> Ids(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (const auto& s : plan.sequences) ids.push_back(s.id.value);
  return ids;
}
std::vector<uint64_t> Preempted(const StepPlan& plan) {
  std::vector<uint64_t> ids;
  for (SequenceId id : plan.preempt) ids.push_back(id.value);
  return ids;
}

TEST(Scheduler, NothingToDoIsAnEmptyPlan) {
  EXPECT_TRUE(Plan({}, 10).empty());
  SequenceView done = Decoding(1, 20);
  done.computed_tokens = 20;
  EXPECT_TRUE(Plan({done}, 10).empty());
}

TEST(Scheduler, DecodesComeFirstThenPrefillsThenWaiting) {
  const StepPlan plan =
      Plan({Waiting(1, 40), Prefilling(2, 100, 30), Decoding(4, 21), Decoding(3, 50)}, 100);
  EXPECT_THAT(Ids(plan), ElementsAre(3, 4, 2, 1));
  EXPECT_EQ(plan.sequences[0].num_tokens, 1);
  EXPECT_TRUE(plan.sequences[0].samples);
  EXPECT_FALSE(plan.sequences[0].starts);
  EXPECT_EQ(plan.sequences[2].token_begin, 30);
  EXPECT_EQ(plan.sequences[2].num_tokens, 70);
  EXPECT_TRUE(plan.sequences[2].samples);
  EXPECT_TRUE(plan.sequences[3].starts);
  EXPECT_EQ(plan.sequences[3].new_blocks, 3);
  EXPECT_EQ(plan.num_tokens, 1 + 1 + 70 + 40);
}

TEST(Scheduler, APromptIsCutToTheTokenBudgetThatDecodesLeave) {
  const StepPlan plan =
      Plan({Decoding(1, 20), Decoding(2, 20), Waiting(3, 100)}, 100, {.max_batch_tokens = 32});
  ASSERT_THAT(Ids(plan), ElementsAre(1, 2, 3));
  EXPECT_EQ(plan.sequences[2].num_tokens, 30);
  EXPECT_FALSE(plan.sequences[2].samples);
  EXPECT_EQ(plan.num_tokens, 32);
}

TEST(Scheduler, OneSequenceTakesAtMostAChunkAndLeavesTheRestToOthers) {
  const ScheduleLimits limits{.max_batch_tokens = 100, .max_prefill_chunk = 40};
  const StepPlan plan = Plan({Waiting(1, 100), Waiting(2, 100), Waiting(3, 100)}, 100, limits);
  ASSERT_THAT(Ids(plan), ElementsAre(1, 2, 3));
  EXPECT_EQ(plan.sequences[0].num_tokens, 40);
  EXPECT_EQ(plan.sequences[1].num_tokens, 40);
  EXPECT_EQ(plan.sequences[2].num_tokens, 20);
}

TEST(Scheduler, AStartingSequenceGetsAllBlocksOfItsTargetEvenWhenOnlyAChunkFits) {
  const StepPlan plan = Plan({Waiting(1, 100)}, 7, {.max_batch_tokens = 16});
  ASSERT_EQ(plan.sequences.size(), 1u);
  EXPECT_EQ(plan.sequences[0].num_tokens, 16);
  EXPECT_EQ(plan.sequences[0].new_blocks, 7);
}

TEST(Scheduler, ACachedPrefixIsNeitherComputedNorPaidTwice) {
  SequenceView v = Waiting(1, 100);
  v.cached_tokens = 64;
  v.cached_free_blocks = 4;
  const StepPlan plan = Plan({v}, 7);
  ASSERT_EQ(plan.sequences.size(), 1u);
  EXPECT_EQ(plan.sequences[0].token_begin, 64);
  EXPECT_EQ(plan.sequences[0].num_tokens, 36);
  EXPECT_EQ(plan.sequences[0].new_blocks, 3);
  EXPECT_TRUE(Plan({v}, 6).empty())
      << "matched blocks that nobody pins are not available any more once they are used";
  v.cached_free_blocks = 0;
  EXPECT_FALSE(Plan({v}, 3).empty()) << "blocks that others pin cost nothing";
}

TEST(Scheduler, TheWatermarkIsKeptForRunningSequences) {
  const ScheduleLimits limits{.watermark_blocks = 2};
  const SequenceView running = Decoding(1, 20);
  EXPECT_THAT(Ids(Plan({running, Waiting(2, 48)}, 5, limits)), ElementsAre(1, 2));
  EXPECT_THAT(Ids(Plan({running, Waiting(2, 49)}, 5, limits)), ElementsAre(1));
}

TEST(Scheduler, TheWatermarkIsWaivedWhenNothingRuns) {
  const ScheduleLimits limits{.watermark_blocks = 2};
  EXPECT_THAT(Ids(Plan({Waiting(1, 80), Waiting(2, 1)}, 5, limits)), ElementsAre(1));
}

TEST(Scheduler, RunningSequencesMayUseTheWatermark) {
  const StepPlan plan = Plan({Decoding(1, 17)}, 1, {.watermark_blocks = 5});
  ASSERT_THAT(Ids(plan), ElementsAre(1));
  EXPECT_EQ(plan.sequences[0].new_blocks, 1);
}

TEST(Scheduler, NobodyOvertakesASequenceThatWaitsForBlocks) {
  EXPECT_TRUE(Plan({Waiting(1, 200), Waiting(2, 16)}, 5).empty());
}

TEST(Scheduler, WhoHoldsAllBlocksAlreadyIsNotHeldUpByOneThatWaitsForBlocks) {
  SequenceView filled = Waiting(2, 33);
  filled.computed_tokens = 32;
  filled.blocks_held = 3;
  const StepPlan plan = Plan({Waiting(1, 200), filled}, 0);
  ASSERT_THAT(Ids(plan), ElementsAre(2));
  EXPECT_TRUE(plan.sequences[0].starts);
  EXPECT_TRUE(plan.sequences[0].samples);
  EXPECT_EQ(plan.sequences[0].token_begin, 32);
  EXPECT_EQ(plan.sequences[0].new_blocks, 0);
}

TEST(Scheduler, GatedSequencesArePassedOver) {
  SequenceView gated = Waiting(1, 32);
  gated.gated = true;
  gated.samples = false;
  EXPECT_THAT(Ids(Plan({gated, Waiting(2, 32)}, 10)), ElementsAre(2));
  gated.gated = false;
  const StepPlan open = Plan({Waiting(2, 32), gated}, 10);
  EXPECT_THAT(Ids(open), ElementsAre(1, 2)) << "once open, it has its old place";
  EXPECT_FALSE(open.sequences[0].samples);
}

TEST(Scheduler, SequencesThatAwaitKvAreNotScheduledAndTakeNoSlot) {
  SequenceView remote = Waiting(1, 32);
  remote.phase = SequencePhase::kAwaitingKv;
  remote.blocks_held = 2;
  EXPECT_THAT(Ids(Plan({remote, Waiting(2, 32)}, 10, {.max_sequences = 1})), ElementsAre(2));
}

TEST(Scheduler, NoMoreSequencesStartThanThereAreSlots) {
  const ScheduleLimits limits{.max_sequences = 3};
  EXPECT_THAT(
      Ids(Plan({Decoding(1, 20), Waiting(2, 5), Waiting(3, 5), Waiting(4, 5)}, 100, limits)),
      ElementsAre(1, 2, 3));
}

TEST(Scheduler, ARunningSequenceWithItsLastTokenInFlightKeepsItsSlot) {
  SequenceView ending = Decoding(1, 20);
  ending.target_tokens = ending.computed_tokens;
  EXPECT_TRUE(Plan({ending, Waiting(2, 5)}, 100, {.max_sequences = 1}).empty());
}

TEST(Scheduler, GreaterPriorityGoesFirstThenEarlierArrival) {
  SequenceView urgent = Waiting(3, 10);
  urgent.priority = 5;
  EXPECT_THAT(Ids(Plan({Waiting(1, 10), Waiting(2, 10), urgent}, 100)), ElementsAre(3, 1, 2));
  EXPECT_THAT(Ids(Plan({Waiting(1, 10), Waiting(2, 10), urgent}, 100, {.max_sequences = 2})),
              ElementsAre(3, 1));
  SequenceView urgent_decode = Decoding(9, 20);
  urgent_decode.priority = 1;
  EXPECT_THAT(Ids(Plan({Decoding(1, 20), urgent_decode}, 100, {.max_batch_tokens = 1})),
              ElementsAre(9));
}

TEST(Scheduler, TheNewestOfTheLowestPriorityIsPreempted) {
  SequenceView low_old = Decoding(2, 20);
  low_old.priority = -1;
  SequenceView low_new = Decoding(3, 20);
  low_new.priority = -1;
  const StepPlan plan = Plan({Decoding(1, 17), Decoding(4, 20), low_old, low_new}, 0);
  EXPECT_THAT(Preempted(plan), ElementsAre(3));
  EXPECT_THAT(Ids(plan), ElementsAre(1, 4, 2));
  EXPECT_EQ(plan.sequences[0].new_blocks, 1);
}

TEST(Scheduler, WhoHasNobodyBehindItToPreemptKeepsItsBlocksAndWaits) {
  // Four sequences want a block each; the last one's two go to the first and the second.
  const StepPlan plan =
      Plan({Decoding(1, 33), Decoding(2, 33), Decoding(3, 33), Decoding(4, 33)}, 0);
  EXPECT_THAT(Preempted(plan), ElementsAre(4));
  EXPECT_THAT(Ids(plan), ElementsAre(1, 2));
}

TEST(Scheduler, TheOldestIsNeverPreempted) {
  const StepPlan plan = Plan({Decoding(1, 17), Decoding(2, 17)}, 0);
  EXPECT_THAT(Preempted(plan), ElementsAre(2));
  EXPECT_THAT(Ids(plan), ElementsAre(1));
}

TEST(Scheduler, ASequenceAloneWithoutABlockWaits) {
  EXPECT_TRUE(Plan({Decoding(1, 17)}, 0).empty());
}

TEST(Scheduler, NobodyIsPreemptedWhenItWouldNotHelp) {
  SequenceView large = Prefilling(1, 160, 16);
  large.blocks_held = 1;
  large.samples = false;
  SequenceView small = Decoding(2, 17);
  small.blocks_held = 0;
  EXPECT_THAT(Preempted(Plan({large, small}, 0)), IsEmpty());
}

TEST(Scheduler, PrefillOnlySequencesAreNeverPreempted) {
  SequenceView reader = Prefilling(2, 100, 16);
  reader.samples = false;
  const StepPlan plan = Plan({Decoding(1, 17), reader}, 0);
  EXPECT_THAT(Preempted(plan), IsEmpty());
  EXPECT_THAT(Ids(plan), ElementsAre(2));
}

TEST(Scheduler, ASequenceAboutToEndIsNotPreempted) {
  SequenceView ending = Decoding(3, 20);
  ending.target_tokens = ending.computed_tokens;
  const StepPlan plan = Plan({Decoding(1, 17), Decoding(2, 20), ending}, 0);
  EXPECT_THAT(Preempted(plan), ElementsAre(2));
}

TEST(Scheduler, AFilledRemoteSequenceThatWaitsForASlotMayBePreempted) {
  SequenceView filled = Waiting(2, 33);
  filled.computed_tokens = 32;
  filled.blocks_held = 3;
  const StepPlan plan = Plan({Decoding(1, 17), filled}, 0, {.max_sequences = 1});
  EXPECT_THAT(Preempted(plan), ElementsAre(2));
  EXPECT_THAT(Ids(plan), ElementsAre(1));
}

TEST(Scheduler, APlanThatPreemptsStartsNobodyThatNeedsBlocks) {
  const StepPlan plan = Plan({Decoding(1, 17), Decoding(2, 200), Waiting(3, 5)}, 0);
  EXPECT_THAT(Preempted(plan), ElementsAre(2));
  EXPECT_THAT(Ids(plan), ElementsAre(1));
}

TEST(Scheduler, AChunkShrinksToTheBlocksThatThereAre) {
  SequenceView v = Prefilling(1, 100, 20);
  v.blocks_held = 2;
  const StepPlan plan = Plan({v}, 2);
  ASSERT_EQ(plan.sequences.size(), 1u);
  EXPECT_EQ(plan.sequences[0].num_tokens, 44);
  EXPECT_EQ(plan.sequences[0].new_blocks, 2);
}

TEST(Scheduler, ProposedTokensTakeWhatIsLeft) {
  SequenceView first = Decoding(1, 20), second = Decoding(2, 20);
  first.draft_tokens = second.draft_tokens = 4;
  ScheduleLimits limits;
  limits.max_draft_rows = 6;
  const std::vector<SequenceView> views = {first, second};
  const StepPlan plan = PlanStep({views, 8, 16}, limits);
  ASSERT_THAT(Ids(plan), ElementsAre(1, 2));
  EXPECT_EQ(plan.sequences[0].draft_tokens, 4);
  EXPECT_EQ(plan.sequences[0].num_tokens, 5);
  EXPECT_EQ(plan.sequences[1].draft_tokens, 2);
  EXPECT_EQ(plan.num_tokens, 8);
  limits.max_batch_tokens = 3;
  EXPECT_EQ(PlanStep({views, 8, 16}, limits).sequences[0].draft_tokens, 1);
  limits.max_draft_rows = 0;
  EXPECT_EQ(PlanStep({views, 8, 16}, limits).num_tokens, 2);
}

TEST(Scheduler, ProposedTokensGoAsFarAsTheBlocksThatAreFree) {
  SequenceView v = Decoding(1, 31);
  v.blocks_held = 2;
  v.draft_tokens = 8;
  ScheduleLimits limits;
  limits.max_draft_rows = 8;
  const std::vector<SequenceView> views = {v};
  const StepPlan none_free = PlanStep({views, 0, 16}, limits);
  EXPECT_EQ(none_free.sequences[0].draft_tokens, 1);
  EXPECT_EQ(none_free.sequences[0].new_blocks, 0);
  const StepPlan one_free = PlanStep({views, 1, 16}, limits);
  EXPECT_EQ(one_free.sequences[0].draft_tokens, 8);
  EXPECT_EQ(one_free.sequences[0].new_blocks, 1);
}

// --- properties over random snapshots ---

std::vector<SequenceView> RandomViews(SplitMix64& random) {
  std::vector<SequenceView> views;
  const auto count = static_cast<int>(random.Below(24));
  for (int i = 0; i < count; ++i) {
    const auto arrival = static_cast<uint64_t>(i + 1);
    const auto tokens = static_cast<int32_t>(2 + random.Below(200));
    SequenceView v;
    switch (random.Below(5)) {
      case 0:
        v = Waiting(arrival, tokens);
        v.gated = random.Below(4) == 0;
        v.cached_tokens =
            static_cast<int32_t>(random.Below(static_cast<uint64_t>((tokens - 1) / kBlock) + 1)) *
            kBlock;
        v.cached_free_blocks =
            static_cast<int32_t>(random.Below(static_cast<uint64_t>(v.cached_tokens / kBlock) + 1));
        break;
      case 1:
        v = Prefilling(arrival, tokens,
                       static_cast<int32_t>(random.Below(static_cast<uint64_t>(tokens))));
        break;
      case 2:
        v = Waiting(arrival, tokens);
        v.phase = SequencePhase::kAwaitingKv;
        v.blocks_held = BlocksFor(tokens);
        break;
      case 3:
        v = Waiting(arrival, tokens);
        v.computed_tokens = tokens - 1;
        v.blocks_held = BlocksFor(tokens);
        break;
      default:
        v = Decoding(arrival, tokens);
    }
    v.priority = static_cast<int32_t>(random.Below(3));
    v.samples = v.phase == SequencePhase::kRunning ? random.Below(8) != 0 : true;
    views.push_back(v);
  }
  return views;
}

ScheduleLimits RandomLimits(SplitMix64& random) {
  ScheduleLimits limits;
  limits.max_batch_tokens = static_cast<int32_t>(1 + random.Below(300));
  limits.max_sequences = static_cast<int32_t>(24 + random.Below(16));
  limits.max_prefill_chunk = static_cast<int32_t>(1 + random.Below(300));
  limits.watermark_blocks = static_cast<int32_t>(random.Below(4));
  return limits;
}

// What every plan must be, recomputed from the views alone.
void ExpectValid(const std::vector<SequenceView>& views, int32_t available,
                 const ScheduleLimits& limits, const StepPlan& plan) {
  std::map<uint64_t, SequenceView> by_id;
  for (const auto& v : views) by_id[v.id.value] = v;
  int32_t blocks = available;
  std::set<uint64_t> gone;
  for (SequenceId id : plan.preempt) {
    const SequenceView& v = by_id.at(id.value);
    EXPECT_TRUE(v.samples);
    EXPECT_GT(v.blocks_held, 0);
    EXPECT_TRUE(gone.insert(id.value).second);
    blocks += v.blocks_held;
  }
  int32_t tokens = 0;
  int32_t running = 0;
  for (const auto& v : views)
    running += v.phase == SequencePhase::kRunning && !gone.contains(v.id.value) ? 1 : 0;
  for (const auto& p : plan.sequences) {
    const SequenceView& v = by_id.at(p.id.value);
    EXPECT_TRUE(gone.insert(p.id.value).second) << "planned twice, or preempted too";
    EXPECT_NE(v.phase, SequencePhase::kAwaitingKv);
    EXPECT_FALSE(v.gated);
    EXPECT_EQ(p.starts, v.phase == SequencePhase::kWaiting);
    const bool matches = p.starts && v.blocks_held == 0;
    EXPECT_EQ(p.token_begin, matches ? v.cached_tokens : v.computed_tokens);
    EXPECT_GT(p.num_tokens, 0);
    EXPECT_LE(p.num_tokens, limits.max_prefill_chunk);
    EXPECT_LE(p.token_begin + p.num_tokens, v.target_tokens);
    EXPECT_EQ(p.samples, v.samples && p.token_begin + p.num_tokens == v.target_tokens);
    EXPECT_GE(p.new_blocks + v.blocks_held + (matches ? v.cached_tokens / kBlock : 0),
              BlocksFor(p.token_begin + p.num_tokens));
    blocks -= p.new_blocks + (matches ? v.cached_free_blocks : 0);
    tokens += p.num_tokens;
    running += p.starts ? 1 : 0;
  }
  EXPECT_GE(blocks, 0);
  EXPECT_EQ(tokens, plan.num_tokens);
  EXPECT_LE(tokens, limits.max_batch_tokens);
  EXPECT_LE(running, limits.max_sequences);
}

TEST(Scheduler, EveryPlanOfARandomSnapshotIsValidAndDoesNotDependOnTheOrderOfTheSequences) {
  SplitMix64 random(20260101);
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE(round);
    std::vector<SequenceView> views = RandomViews(random);
    const ScheduleLimits limits = RandomLimits(random);
    const auto available = static_cast<int32_t>(random.Below(40));
    const StepPlan plan = Plan(views, available, limits);
    ExpectValid(views, available, limits, plan);
    for (size_t i = views.size(); i > 1; --i) std::swap(views[i - 1], views[random.Below(i)]);
    const StepPlan again = Plan(views, available, limits);
    ASSERT_EQ(Ids(again), Ids(plan));
    ASSERT_EQ(Preempted(again), Preempted(plan));
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      ASSERT_EQ(again.sequences[i].num_tokens, plan.sequences[i].num_tokens);
      ASSERT_EQ(again.sequences[i].new_blocks, plan.sequences[i].new_blocks);
    }
    if (HasFailure()) FAIL() << "seed 20260101, round " << round;
  }
}

// A closed world around PlanStep: sequences arrive, run as planned and end. Everyone must end.
class World {
 public:
  World(int32_t blocks, const ScheduleLimits& limits, uint64_t seed)
      : free_(blocks), limits_(limits), random_(seed) {}

  void Arrive(int32_t prompt, int32_t to_draw) {
    SequenceView v = Waiting(++arrivals_, prompt);
    views_.push_back(v);
    left_[v.id.value] = to_draw;
  }
  void Step() {
    const StepPlan plan = Plan(views_, free_, limits_);
    ExpectValid(views_, free_, limits_, plan);
    for (SequenceId id : plan.preempt) {
      SequenceView& v = Of(id);
      free_ += v.blocks_held;
      v.blocks_held = v.computed_tokens = 0;
      v.phase = SequencePhase::kWaiting;
    }
    for (const auto& p : plan.sequences) Run(p);
    std::erase_if(views_, [this](const SequenceView& v) {
      if (left_[v.id.value] > 0) return false;
      free_ += v.blocks_held;
      return true;
    });
  }
  bool done() const { return views_.empty(); }
  size_t size() const { return views_.size(); }
  uint64_t oldest() const { return views_.front().arrival; }

 private:
  SequenceView& Of(SequenceId id) {
    return *std::find_if(views_.begin(), views_.end(),
                         [id](const SequenceView& v) { return v.id == id; });
  }
  void Run(const PlannedSequence& p) {
    SequenceView& v = Of(p.id);
    v.phase = SequencePhase::kRunning;
    v.blocks_held += p.new_blocks;
    free_ -= p.new_blocks;
    v.computed_tokens = p.token_begin + p.num_tokens;
    if (p.samples) {
      ++v.target_tokens;
      --left_[v.id.value];
    }
  }
  int32_t free_;
  ScheduleLimits limits_;
  SplitMix64 random_;
  uint64_t arrivals_ = 0;
  std::vector<SequenceView> views_;
  std::map<uint64_t, int32_t> left_;
};

TEST(Scheduler, EverySequenceEndsUnderConstantArrivalsInATinyPool) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    const ScheduleLimits limits{
        .max_batch_tokens = 24, .max_sequences = 6, .max_prefill_chunk = 16};
    World world(/*blocks=*/12, limits, seed);
    int steps_with_same_oldest = 0;
    uint64_t oldest = 0;
    for (int step = 0; step < 1500; ++step) {
      if (random.Below(3) == 0 && world.size() < 30) {
        world.Arrive(static_cast<int32_t>(1 + random.Below(120)),
                     static_cast<int32_t>(1 + random.Below(60)));
      }
      world.Step();
      if (world.done()) continue;
      steps_with_same_oldest = world.oldest() == oldest ? steps_with_same_oldest + 1 : 0;
      oldest = world.oldest();
      // 180 tokens at most, 16 of a chunk or 1 drawn in each step: the oldest is never held up by
      // others for long.
      ASSERT_LT(steps_with_same_oldest, 8 + 60 + 8);
    }
    for (int step = 0; step < 100000 && !world.done(); ++step) world.Step();
    EXPECT_TRUE(world.done());
  }
}

}  // namespace
}  // namespace aisp
