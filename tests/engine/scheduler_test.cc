#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/scheduler_views.h"

namespace aisp {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
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
  EXPECT_EQ(plan.sequences[1].num_tokens, 30) << "half of what is left";
  EXPECT_EQ(plan.sequences[2].num_tokens, 30);
}

TEST(Scheduler, ALongPromptLeavesHalfOfTheStepToThoseBehindIt) {
  const ScheduleLimits limits{.max_batch_tokens = 128};
  const StepPlan plan =
      Plan({Prefilling(1, 100000, 512), Waiting(2, 30), Waiting(3, 30)}, 100, limits);
  ASSERT_THAT(Ids(plan), ElementsAre(1, 2, 3));
  EXPECT_EQ(plan.sequences[0].num_tokens, 68) << "its half, and what the others left of theirs";
  EXPECT_EQ(plan.sequences[1].num_tokens, 30);
  EXPECT_TRUE(plan.sequences[1].samples);
  EXPECT_EQ(plan.sequences[2].num_tokens, 30);
  EXPECT_EQ(plan.num_tokens, 128);
  EXPECT_EQ(Plan({Prefilling(1, 100000, 512)}, 100, limits).num_tokens, 128) << "alone it gets all";
  // One that ends in this step is not cut: later ones would gain nothing.
  const StepPlan whole = Plan({Prefilling(1, 612, 512), Waiting(2, 100)}, 100, limits);
  EXPECT_EQ(whole.sequences[0].num_tokens, 100);
  EXPECT_EQ(whole.sequences[1].num_tokens, 28);
}

TEST(Scheduler, TheTenantToWhichLessWasGivenGoesFirst) {
  SequenceView attacker = Prefilling(1, 5000, 1000);
  attacker.priority = 100;
  SequenceView other = Waiting(2, 3000);
  SequenceView victim = Waiting(3, 40);
  victim.tenant = 1;
  const std::vector<SequenceView> views = {attacker, other, victim};
  const std::vector<TenantView> tenants = {{.service = 9000, .weight = 1},
                                           {.service = 100, .weight = 1}};
  const ScheduleLimits limits{.max_batch_tokens = 128};
  const StepPlan plan = PlanStep({views, 1000, kBlock, tenants}, limits);
  ASSERT_THAT(Ids(plan), ElementsAre(3, 1, 2));
  EXPECT_EQ(plan.sequences[0].num_tokens, 40);
  EXPECT_EQ(plan.num_tokens, 128);
}

// Running sequences of tenant 0, and one waiting sequence of each tenant.
std::vector<SequenceView> ManyOfOneTenant(uint64_t running) {
  std::vector<SequenceView> views;
  for (uint64_t i = 1; i <= running; ++i) views.push_back(Decoding(i, 17));
  views.push_back(Waiting(100, 10));
  views.push_back(Waiting(200, 10));
  views.back().tenant = 1;
  return views;
}

TEST(Scheduler, ATenantLeavesPlacesForOthers) {
  std::vector<TenantView> tenants = {{.service = 2, .leaves_places = true},
                                     {.service = 1, .leaves_places = true}};
  const auto starts = [&](const std::vector<SequenceView>& views) {
    std::vector<uint64_t> ids;
    const ScheduleLimits limits{.max_sequences = 10};
    for (const PlannedSequence& each : PlanStep({views, 1000, kBlock, tenants}, limits).sequences) {
      if (each.starts) ids.push_back(each.id.value);
    }
    return ids;
  };
  EXPECT_THAT(starts(ManyOfOneTenant(7)), ElementsAre(200, 100));
  EXPECT_THAT(starts(ManyOfOneTenant(8)), ElementsAre(200));
  std::vector<SequenceView> alone = ManyOfOneTenant(9);
  alone.pop_back();
  EXPECT_THAT(starts(alone), ElementsAre()) << "the last one is for others";
  alone[9].rank = 1;
  EXPECT_THAT(starts(alone), ElementsAre(100)) << "its key goes before all tenants";
  alone[9].rank = 0;
  tenants[0].weight = 10;
  EXPECT_THAT(starts(alone), ElementsAre(100));
  tenants[0] = {.service = 0, .leaves_places = true};
  EXPECT_THAT(starts(alone), ElementsAre(100)) << "it was given less than the other one";
  tenants[0] = {.service = 2, .leaves_places = false};
  EXPECT_THAT(starts(alone), ElementsAre(100)) << "everybody without a key";
}

TEST(Scheduler, ATenantsOwnBatchIsNotInTheWayOfItsInteractiveRequests) {
  std::vector<SequenceView> views = ManyOfOneTenant(9);
  views.pop_back();
  for (size_t i = 0; i < 9; ++i) {
    views[i].service_class = ServiceClass::kBatch;
    views[i].rank = -1;
  }
  const std::vector<TenantView> tenants = {{.service = 1, .leaves_places = true},
                                           {.service = 2, .leaves_places = true}};
  EXPECT_THAT(Ids(PlanStep({views, 1000, kBlock, tenants}, {.max_sequences = 10})),
              ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 100));
}

TEST(Scheduler, WhoPreemptsIsDecidedByTenantThenByPriority) {
  SequenceView attacker = Decoding(1, 17);
  attacker.priority = 100;
  SequenceView victim = Decoding(2, 17);
  victim.tenant = 1;
  std::vector<SequenceView> views = {attacker, victim};
  const std::vector<TenantView> tenants = {{.service = 900, .weight = 1},
                                           {.service = 100, .weight = 1}};
  EXPECT_THAT(Preempted(PlanStep({views, 0, kBlock, tenants}, {})), ElementsAre(1));
  views[0].rank = 1;
  EXPECT_THAT(Preempted(PlanStep({views, 0, kBlock, tenants}, {})), ElementsAre(2));
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
  // Four sequences need a block each; the last one's two go to the first and the second.
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
  large.has_reader = true;
  SequenceView small = Decoding(2, 17);
  small.blocks_held = 0;
  EXPECT_THAT(Preempted(Plan({large, small}, 0)), IsEmpty());
}

TEST(Scheduler, PrefillOnlySequencesAreNeverPreempted) {
  SequenceView reader = Prefilling(2, 100, 16);
  reader.has_reader = true;
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

TEST(Scheduler, WhoNeedsARowAloneStartsWithItsProposedTokens) {
  SequenceView filled = Decoding(1, 20), whole = Waiting(2, 20);
  filled.phase = SequencePhase::kWaiting;
  filled.draft_tokens = whole.draft_tokens = 4;
  ScheduleLimits limits;
  limits.max_draft_rows = 6;
  const std::vector<SequenceView> views = {filled, whole};
  const StepPlan plan = PlanStep({views, 8, 16}, limits);
  ASSERT_THAT(Ids(plan), ElementsAre(1, 2));
  EXPECT_TRUE(plan.sequences[0].starts);
  EXPECT_EQ(plan.sequences[0].num_tokens, 5);
  EXPECT_EQ(plan.sequences[0].draft_tokens, 4);
  EXPECT_EQ(plan.sequences[1].num_tokens, 20);
  EXPECT_EQ(plan.sequences[1].draft_tokens, 0);
}

TEST(Scheduler, AStepThatDecodesHasAtMostTheGivenPrefillRows) {
  const std::vector<SequenceView> both = {Decoding(1, 20), Waiting(2, 400)};
  const StepPlan plan = PlanStep({both, 100, 16, {}, /*prefill_tokens=*/0}, {});
  EXPECT_THAT(Ids(plan), ElementsAre(1));
  const StepPlan some = PlanStep({both, 100, 16, {}, 100}, {});
  ASSERT_THAT(Ids(some), ElementsAre(1, 2));
  EXPECT_EQ(some.sequences[1].num_tokens, 100);
  const std::vector<SequenceView> alone = {Waiting(2, 400)};
  EXPECT_THAT(Ids(PlanStep({alone, 100, 16, {}, 0}, {})), ElementsAre(2)) << "for nobody";
}

// --- properties over random snapshots ---

}  // namespace
}  // namespace aisp
