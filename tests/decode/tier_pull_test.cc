// Prefixes that their holder has in a tier below its pool: they are loaded into the pool for the
// worker that asks. A failure on the way is a miss that frees every block on both sides.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;

// p0 holds the KV of `prompt` only in a tier; d holds nothing, and prefills by itself.
class TierPull : public ::testing::Test {
 protected:
  static RigOptions InHost() {
    RigOptions options;
    options.host_slots = 64;
    return options;
  }
  static RigOptions OnDisk() {
    RigOptions options;
    options.disk_slots = 64;
    return options;
  }
  void Start(const RigOptions& options) {
    rig_ = std::make_unique<RoleRig>(options);
    rig_->Attach();
    rig_->router->Generate("d", rig_->MakeRequest(kFirst, prompt_, 1));
    rig_->ExpectAnswer(kFirst, prompt_, 1);
    rig_->RunFor(milliseconds(5));
    rig_->decode->engine->blocks().ClearCache();
    holder().engine->blocks().ClearCache();
    computed_by_holder_ = holder().executor->rows_computed();
  }
  RigPrefill& holder() { return *rig_->prefills[0]; }
  std::vector<TokenId> Longer(int more, uint64_t seed = 77) const {
    return MakeLonger(prompt_, more, seed);
  }
  v1::GenerateRequest Pulling(uint64_t id, const std::vector<TokenId>& prompt) const {
    return rig_->MakePull(id, prompt, 8);
  }
  // Runs until p0 has begun to load it; from here on copies are blocked.
  void StartPromoting(uint64_t id, const std::vector<TokenId>& prompt) {
    holder().hold_tiers = true;
    rig_->router->Generate("d", Pulling(id, prompt));
    ASSERT_TRUE(rig_->RunUntil([&] { return Loads() > 0; }));
  }
  size_t Loads() {
    size_t loads = 0;
    for (const TierJob& job : holder().tiers->jobs())
      loads += job.to.place == TierPlace::kPool ? 1 : 0;
    return loads;
  }
  void FinishLoads(const Status& status = {}) {
    while (!holder().tiers->jobs().empty()) holder().tiers->Finish(0, status);
    holder().hold_tiers = false;
  }
  v1::PrefixPull Pulled(uint64_t id) const {
    return rig_->router->answers.at(id).timings.at(0).pull();
  }
  void ExpectAllBack() {
    holder().hold_tiers = false;
    rig_->RunFor(milliseconds(50));
    rig_->ExpectAllBlocksBack();
    holder().engine->CheckInvariants();
  }

  static constexpr uint64_t kFirst = 1000;
  std::vector<TokenId> prompt_ = MakePrompt(101, 5);
  std::unique_ptr<RoleRig> rig_;
  uint64_t computed_by_holder_ = 0;
};

TEST_F(TierPull, WhatLiesInATierAloneIsGivenAway) {
  for (const RigOptions& options : {InHost(), OnDisk()}) {
    Start(options);
    const auto longer = Longer(40);
    StartPromoting(1, longer);
    rig_->RunFor(milliseconds(2));
    FinishLoads();
    rig_->ExpectAnswer(1, longer, 8);
    EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
    EXPECT_EQ(Pulled(1).tokens(), 96u);
    EXPECT_GE(Pulled(1).promotion_ns(), Duration(milliseconds(2)).count());
    EXPECT_LE(Pulled(1).promotion_ns(), Pulled(1).duration_ns());
    EXPECT_EQ(holder().executor->rows_computed(), computed_by_holder_);
    ExpectAllBack();
  }
}

TEST_F(TierPull, OfWhatLiesInThePoolNothingIsPromoted) {
  Start(InHost());
  holder().hold_tiers = true;
  rig_->router->Generate("d", rig_->MakeRequest(2, prompt_, 1));
  rig_->RunFor(milliseconds(5));
  FinishLoads();
  rig_->ExpectAnswer(2, prompt_, 1);
  rig_->decode->engine->blocks().ClearCache();
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(Pulled(1).promotion_ns(), 0);
  ExpectAllBack();
}

// The grant comes with the request: it waits at the holder, which answers only when all blocks are
// there.
TEST_F(TierPull, NothingIsWrittenBeforeItIsInThePool) {
  Start(InHost());
  const size_t written = holder().transport->writes_started();
  StartPromoting(1, Longer(40));
  rig_->RunFor(milliseconds(1));
  EXPECT_EQ(holder().transport->writes_started(), written);
  FinishLoads();
  rig_->ExpectAnswer(1, Longer(40), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  ExpectAllBack();
}

TEST_F(TierPull, ACorruptBlockIsAMissFromThereOn) {
  Start(OnDisk());
  StartPromoting(1, Longer(40));
  // Three of six blocks come as they were written.
  for (int i = 0; i < 3; ++i) holder().tiers->Finish(0);
  FinishLoads(DataLoss("not what was written"));
  rig_->ExpectAnswer(1, Longer(40), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(Pulled(1).tokens(), 48u);
  EXPECT_EQ(holder().engine->tiers()->Stats(TierPlace::kDisk).corrupt, 3u);
  ExpectAllBack();
}

TEST_F(TierPull, ATierThatBringsNothingIsAMiss) {
  Start(OnDisk());
  StartPromoting(1, Longer(40));
  FinishLoads(Unavailable("the disk gives an error"));
  rig_->ExpectAnswer(1, Longer(40), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::MISSED);
  ExpectAllBack();
}

TEST_F(TierPull, ASlowDiskCostsTheTimeToBegin) {
  Start(OnDisk());
  const Instant asked = rig_->clock.Now();
  StartPromoting(1, Longer(40));
  rig_->ExpectAnswer(1, Longer(40), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::LATE);
  EXPECT_LT(rig_->clock.Now() - asked, milliseconds(300));
  EXPECT_EQ(Loads(), 6u) << "the promotion goes on by itself";
  FinishLoads();
  ExpectAllBack();
}

// A reader that would wait forever is told when computing would have been faster.
TEST_F(TierPull, AHolderWaitsForItsDiskAsLongAsItWouldItself) {
  Start(OnDisk());
  v1::GenerateRequest request = Pulling(1, Longer(40));
  request.mutable_pull()->set_begin_within_us(5'000'000);
  request.mutable_pull()->set_limit_us(6'000'000);
  holder().hold_tiers = true;
  const Instant asked = rig_->clock.Now();
  rig_->router->Generate("d", request);
  rig_->ExpectAnswer(1, Longer(40), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::MISSED);
  EXPECT_LT(rig_->clock.Now() - asked, milliseconds(1200));
  FinishLoads();
  ExpectAllBack();
}

TEST_F(TierPull, WhatIsInThePoolIsNotEvictedWhileTheRestComesUp) {
  Start(InHost());
  // Its beginning is in the pool, the three blocks after it are only in the tier.
  const std::vector<TokenId> beginning(prompt_.begin(), prompt_.begin() + 50);
  rig_->router->Generate("d", rig_->MakeRequest(2, beginning, 1));
  rig_->ExpectAnswer(2, beginning, 1);
  rig_->decode->engine->blocks().ClearCache();
  StartPromoting(1, Longer(40));
  EXPECT_EQ(Loads(), 3u);
  // Other prompts take all blocks that are not pinned.
  BlockManager& blocks = holder().engine->blocks();
  auto all = blocks.Reserve(blocks.Available());
  ASSERT_TRUE(all);
  FinishLoads();
  rig_->ExpectAnswer(1, Longer(40), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(Pulled(1).tokens(), 96u);
  *all = Reservation();
  ExpectAllBack();
}

TEST_F(TierPull, APoolWithoutRoomGivesWhatItHas) {
  Start(InHost());
  BlockManager& blocks = holder().engine->blocks();
  auto all = blocks.Reserve(blocks.Available());
  ASSERT_TRUE(all);
  rig_->router->Generate("d", Pulling(1, Longer(40)));
  rig_->ExpectAnswer(1, Longer(40), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::MISSED);
  *all = Reservation();
  ExpectAllBack();
}

TEST_F(TierPull, CancelledAtAnyStepItLeavesNothingBehind) {
  for (const bool owner_copies : {false, true}) {
    for (int turns = 0; turns < 14; ++turns) {
      SCOPED_TRACE(turns);
      RigOptions options = turns % 2 == 0 ? InHost() : OnDisk();
      options.owner_copies = owner_copies;
      options.in_step = turns % 3 == 1;
      Start(options);
      holder().hold_tiers = true;
      rig_->router->Generate("d", Pulling(1, Longer(40)));
      for (int i = 0; i < turns && !rig_->Finished(1); ++i) {
        // One block is loaded each turn.
        if (!holder().tiers->jobs().empty()) holder().tiers->Finish(0);
        rig_->Turn();
      }
      rig_->router->Cancel("d", 1);
      ExpectAllBack();
    }
  }
}

TEST_F(TierPull, AHolderThatDiesWhileItPromotesGivesItsGrantBackByItsDeath) {
  Start(InHost());
  StartPromoting(1, Longer(40));
  rig_->KillPrefill(0, /*proof=*/true);
  rig_->ExpectAnswer(1, Longer(40), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FAILED);
  rig_->RunFor(milliseconds(50));
  rig_->ExpectAllBlocksBack();
}

TEST_F(TierPull, AReaderThatDiesWhileItIsPromotedLeavesNothingBehind) {
  Start(InHost());
  StartPromoting(1, Longer(40));
  rig_->KillDecode();
  FinishLoads();
  ExpectAllBack();
}

TEST_F(TierPull, TwoThatWantTheSamePrefixShareOnePromotion) {
  Start(InHost());
  StartPromoting(1, Longer(40));
  rig_->router->Generate("d", Pulling(2, Longer(20, 3)));
  rig_->RunFor(milliseconds(1));
  EXPECT_EQ(Loads(), 6u);
  FinishLoads();
  rig_->ExpectAnswer(1, Longer(40), 8);
  rig_->ExpectAnswer(2, Longer(20, 3), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(Pulled(2).result(), v1::PrefixPull::FILLED);
  ExpectAllBack();
}

TEST_F(TierPull, AGrantOfWhatIsNotThereIsGivenBackAtOnce) {
  Start(InHost());
  rig_->kv_links.on_up = [&](v1::DecodeToPrefill& message) {
    if (message.prefill().has_grant())
      message.mutable_prefill()->mutable_grant()->set_blocks(2, 5000);
    return true;
  };
  const size_t written = holder().transport->writes_started();
  StartPromoting(1, Longer(40));
  rig_->ExpectAnswer(1, Longer(40), 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FAILED);
  EXPECT_EQ(holder().transport->writes_started(), written);
  FinishLoads();
  ExpectAllBack();
}

// What routers learn about tiers: one unit for each 16 tokens once it was copied; it is removed
// with the copy.
TEST_F(TierPull, RoutersHearWhatTiersHold) {
  Start(OnDisk());
  const auto stored = [&] {
    int units = 0;
    for (const v1::KvEventBatch& batch : rig_->router->tier_events["p0"]) {
      EXPECT_EQ(batch.tier(), v1::KV_TIER_DISK);
      for (const v1::KvEvent& event : batch.events())
        units += event.kind() == v1::KvEvent::STORED ? event.unit_hashes_size()
                                                     : -event.unit_hashes_size();
    }
    return units;
  };
  ASSERT_TRUE(rig_->RunUntil([&] { return stored() > 0; }));
  EXPECT_EQ(stored(), 6);
  StartPromoting(1, Longer(40));
  for (int i = 0; i < 4; ++i) holder().tiers->Finish(0);
  FinishLoads(DataLoss("not what was written"));
  rig_->ExpectAnswer(1, Longer(40), 8);
  ASSERT_TRUE(rig_->RunUntil([&] { return stored() < 6; }));
  EXPECT_EQ(stored(), 4);
  ExpectAllBack();
}

}  // namespace
}  // namespace aisp
