// A prefill worker pulls the beginning of a prompt from another worker's cache. What arrives is not
// computed, and the tokens are those of one engine. Whatever fails, the prompt is computed and
// every block is freed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;

// p1 holds the KV of `prompt`; d, and p0, which computes for it, hold nothing.
class PrefillPull : public ::testing::Test {
 protected:
  void Start(RigOptions options = {}) {
    options.prefill_workers = 2;
    rig_ = std::make_unique<RoleRig>(options);
    rig_->Attach();
    v1::GenerateRequest first = rig_->MakeRequest(kFirst, prompt_, 1);
    *first.mutable_prefill() = first.prefill_fallbacks(0);
    first.clear_prefill_fallbacks();
    rig_->router->Generate("d", first);
    rig_->ExpectAnswer(kFirst, prompt_, 1);
    rig_->decode->engine->blocks().ClearCache();
    computed_before_ = rig_->prefills[0]->executor->rows_computed();
  }
  std::vector<TokenId> Longer(int more, uint64_t seed = 77) const {
    return MakeLonger(prompt_, more, seed);
  }
  v1::GenerateRequest Pulling(uint64_t id, const std::vector<TokenId>& prompt) const {
    return rig_->MakePull(id, prompt, 8, /*holder=*/1, /*by_prefill=*/true);
  }
  const v1::Timing& Timing(uint64_t id) const { return rig_->router->answers.at(id).timings.at(0); }
  RigPrefill& p(size_t i) { return *rig_->prefills[i]; }
  uint64_t Computed() { return p(0).executor->rows_computed() - computed_before_; }
  void ExpectAllBack() {
    rig_->RunFor(milliseconds(50));
    rig_->ExpectAllBlocksBack();
  }

  static constexpr uint64_t kFirst = 1000;
  std::vector<TokenId> prompt_ = MakePrompt(101, 5);
  std::unique_ptr<RoleRig> rig_;
  uint64_t computed_before_ = 0;
};

TEST_F(PrefillPull, WhatAnotherWorkerHoldsIsNotComputedAgain) {
  Start();
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Timing(1).pull().result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(Timing(1).pull().tokens(), 96u);
  EXPECT_EQ(Timing(1).pull().holder(), "p1");
  EXPECT_EQ(Timing(1).prefill_worker(), "p0");
  EXPECT_EQ(Timing(1).fallback(), "");
  EXPECT_EQ(Computed(), 141u - 96u);
  ExpectAllBack();
}

TEST_F(PrefillPull, PromptsWithTheSameBeginningShareOnePull) {
  Start();
  int asked = 0;
  rig_->kv_links.on_up = [&](v1::DecodeToPrefill& message) {
    asked += message.has_prefill() && message.prefill().cached_only() ? 1 : 0;
    return true;
  };
  for (uint64_t id = 1; id <= 4; ++id)
    rig_->router->Generate("d", Pulling(id, Longer(20 + static_cast<int>(id), id)));
  for (uint64_t id = 1; id <= 4; ++id)
    rig_->ExpectAnswer(id, Longer(20 + static_cast<int>(id), id), 8);
  EXPECT_GE(asked, 1);
  EXPECT_LE(asked, 4);
  EXPECT_LT(Computed(), 4u * 60u);
  ExpectAllBack();
}

TEST_F(PrefillPull, WhatTheHolderHasEvictedIsComputed) {
  Start();
  p(1).engine->blocks().ClearCache();
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Timing(1).pull().result(), v1::PrefixPull::MISSED);
  EXPECT_EQ(Computed(), 141u);
  ExpectAllBack();
}

TEST_F(PrefillPull, AHolderThatSaysNothingCostsTheTimeToBegin) {
  Start();
  p(1).paused = true;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  const Instant asked = rig_->clock.Now();
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_LT(rig_->clock.Now() - asked, milliseconds(300));
  EXPECT_EQ(Timing(1).pull().result(), v1::PrefixPull::LATE);
  p(1).paused = false;
  ExpectAllBack();
}

TEST_F(PrefillPull, AHolderThatDiesWhileItWritesGivesItsGrantBackByItsDeath) {
  Start();
  p(1).transport->hold = true;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  ASSERT_TRUE(rig_->RunUntil([&] { return p(1).transport->queued() > 0; }));
  rig_->KillPrefill(1, /*proof=*/true);
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Timing(1).pull().result(), v1::PrefixPull::FAILED);
  ExpectAllBack();
}

// At the same time, over separate lanes, while the holder's pool is needed for other requests:
// before a write has landed, between two, and when one of the two pulls is over.
TEST_F(PrefillPull, TwoWorkersPullTheSamePrefixWhileItsHolderEvictsIt) {
  for (size_t landed = 0; landed < 8; ++landed) {
    Start();
    p(1).transport->hold = true;
    const auto longer = Longer(40);
    const auto other = Longer(30, 78);
    rig_->router->Generate("d", Pulling(1, longer));
    rig_->router->Generate("d", rig_->MakePull(2, other, 8, /*holder=*/1));
    ASSERT_TRUE(rig_->RunUntil([&] { return p(1).transport->queued() >= 2; }));
    BlockManager& blocks = p(1).engine->blocks();
    std::vector<Reservation> taken;
    const auto evict = [&] {
      taken.push_back(std::move(*blocks.Reserve(blocks.Available())));
      EXPECT_EQ(blocks.Available(), 0);
    };
    evict();
    p(1).transport->Land(landed);
    rig_->RunFor(milliseconds(1));
    evict();
    p(1).transport->hold = false;
    p(1).transport->Land();
    rig_->ExpectAnswer(1, longer, 8);
    rig_->ExpectAnswer(2, other, 8);
    EXPECT_EQ(Timing(1).pull().result(), v1::PrefixPull::FILLED);
    EXPECT_EQ(Timing(2).pull().result(), v1::PrefixPull::FILLED);
    taken.clear();
    ExpectAllBack();
  }
}

TEST_F(PrefillPull, ABlockThatIsNotWhatWasWrittenIsNotRead) {
  Start();
  p(1).transport->spoil = 1;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Timing(1).pull().result(), v1::PrefixPull::FAILED);
  EXPECT_EQ(Timing(1).fallback(), "");
  ExpectAllBack();
}

TEST_F(PrefillPull, APrefillWorkerThatDiesWhileItPullsIsReplacedByTheNextOne) {
  Start();
  p(1).transport->hold = true;
  const auto longer = Longer(40);
  v1::GenerateRequest request = Pulling(1, longer);
  v1::PrefillTarget* next = request.add_prefill_fallbacks();
  next->set_worker_id("p1");
  next->set_kv_address("p1");
  rig_->router->Generate("d", request);
  ASSERT_TRUE(rig_->RunUntil([&] { return p(1).transport->queued() > 0; }));
  rig_->KillPrefill(0, /*proof=*/true);
  rig_->RunFor(milliseconds(2));
  p(1).transport->hold = false;
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Timing(1).prefill_worker(), "p1");
  EXPECT_EQ(Timing(1).pull().result(), v1::PrefixPull::NONE);
  ExpectAllBack();
}

TEST_F(PrefillPull, AWorkerThatDrainsWhileItPullsPassesItsPromptOn) {
  Start();
  p(1).transport->hold = true;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  ASSERT_TRUE(rig_->RunUntil([&] { return p(1).transport->queued() > 0; }));
  p(0).prefill->BeginDrain();
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_TRUE(p(0).prefill->Drained());
  p(1).transport->hold = false;
  p(1).transport->Land();
  ExpectAllBack();
}

TEST_F(PrefillPull, CancelledAtAnyStepItLeavesNothingBehind) {
  for (const bool owner_copies : {false, true}) {
    for (int turns = 0; turns < 16; ++turns) {
      SCOPED_TRACE(turns);
      RigOptions options;
      options.owner_copies = owner_copies;
      Start(options);
      rig_->router->Generate("d", Pulling(1, Longer(40)));
      for (int i = 0; i < turns && !rig_->Finished(1); ++i) rig_->Turn();
      rig_->router->Cancel("d", 1);
      ExpectAllBack();
    }
  }
}

TEST_F(PrefillPull, AHolderThatLiesIsNotBelieved) {
  const std::vector<std::function<void(v1::PrefillToDecode&)>> lies = {
      [](v1::PrefillToDecode& m) { m.mutable_need()->set_held_tokens(1u << 31); },
      [](v1::PrefillToDecode& m) { m.mutable_need()->set_held_tokens(17); }};
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    Start();
    rig_->kv_links.on_down = [&](v1::PrefillToDecode& message) {
      if (message.has_need() && message.need().held_tokens() > 0) lies[i](message);
      return true;
    };
    const auto longer = Longer(11);
    rig_->router->Generate("d", Pulling(1, longer));
    rig_->ExpectAnswer(1, longer, 8);
    EXPECT_EQ(Timing(1).pull().result(), v1::PrefixPull::FAILED);
    ExpectAllBack();
  }
}

}  // namespace
}  // namespace aisp
