// The scheduler on random snapshots and in a small simulation.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/random.h"
#include "tests/engine/scheduler_views.h"

namespace aisp {
namespace {

std::vector<SequenceView> RandomViews(SplitMix64& random) {
  std::vector<SequenceView> views;
  const auto count = static_cast<int>(random.Below(24));
  for (int i = 0; i < count; ++i) {
    const auto arrival = static_cast<uint64_t>(i) + 1;
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
    v.has_reader = v.phase == SequencePhase::kRunning && random.Below(8) == 0;
    v.samples = !v.has_reader || random.Below(2) == 0;
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

// Checks of every plan, recomputed from the views alone.
void ExpectValid(const std::vector<SequenceView>& views, int32_t available,
                 const ScheduleLimits& limits, const StepPlan& plan) {
  std::map<uint64_t, SequenceView> by_id;
  for (const auto& v : views) by_id[v.id.value] = v;
  int32_t blocks = available;
  std::set<uint64_t> gone;
  for (SequenceId id : plan.preempt) {
    const SequenceView& v = by_id.at(id.value);
    EXPECT_FALSE(v.has_reader);
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

// A closed simulation of PlanStep: sequences arrive, run as planned, and must all end.
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
      // At most 180 tokens, 16 of a chunk or 1 drawn per step: others never delay the oldest for
      // long.
      ASSERT_LT(steps_with_same_oldest, 8 + 60 + 8);
    }
    for (int step = 0; step < 100000 && !world.done(); ++step) world.Step();
    EXPECT_TRUE(world.done());
  }
}

}  // namespace
}  // namespace aisp
