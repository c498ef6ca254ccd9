// Prefixes from another worker's cache: the tokens are those of one engine and nothing that the
// holder has is computed again. Whatever fails on the way, the request goes on and every block is
// freed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;

// p0 holds the KV of `prompt` in whole blocks; d holds nothing, and prefills by itself.
class PrefixPull : public ::testing::Test {
 protected:
  void Start(const RigOptions& options = {}) {
    rig_ = std::make_unique<RoleRig>(options);
    rig_->Attach();
    rig_->router->Generate("d", rig_->MakeRequest(kFirst, prompt_, 1));
    rig_->ExpectAnswer(kFirst, prompt_, 1);
    rig_->decode->engine->blocks().ClearCache();
    computed_before_ = rig_->decode->executor->rows_computed();
    computed_by_holder_ = rig_->prefills[0]->executor->rows_computed();
  }
  // The next turn: the prompt and the answer to it.
  std::vector<TokenId> Longer(int more, uint64_t seed = 77) const {
    return MakeLonger(prompt_, more, seed);
  }
  v1::GenerateRequest Pulling(uint64_t id, const std::vector<TokenId>& prompt) const {
    return rig_->MakePull(id, prompt, 8);
  }
  v1::PrefixPull Pulled(uint64_t id) const {
    return rig_->router->answers.at(id).timings.at(0).pull();
  }
  uint64_t Computed() const { return rig_->decode->executor->rows_computed() - computed_before_; }
  void ExpectAllBack() {
    rig_->RunFor(milliseconds(50));
    rig_->ExpectAllBlocksBack();
  }

  static constexpr uint64_t kFirst = 1000;
  std::vector<TokenId> prompt_ = MakePrompt(101, 5);
  std::unique_ptr<RoleRig> rig_;
  uint64_t computed_before_ = 0;
  uint64_t computed_by_holder_ = 0;
};

TEST_F(PrefixPull, WhatAnotherWorkerHoldsIsNotComputedAgain) {
  Start();
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(Pulled(1).tokens(), 96u);
  EXPECT_EQ(Pulled(1).holder(), "p0");
  EXPECT_EQ(rig_->router->answers.at(1).timings.at(0).cached_tokens(), 96u);
  EXPECT_EQ(Computed(), 141u - 96u + 7u);
  EXPECT_EQ(rig_->prefills[0]->executor->rows_computed(), computed_by_holder_);
  ExpectAllBack();
}

TEST_F(PrefixPull, OfAPromptThatIsHeldAsAWholeOneTokenIsComputed) {
  Start();
  const std::vector<TokenId> whole(prompt_.begin(), prompt_.begin() + 96);
  rig_->router->Generate("d", Pulling(1, whole));
  rig_->ExpectAnswer(1, whole, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(Pulled(1).tokens(), 96u);
  EXPECT_EQ(rig_->router->answers.at(1).timings.at(0).cached_tokens(), 95u);
  EXPECT_EQ(Computed(), 1u + 7u);
  ExpectAllBack();
}

TEST_F(PrefixPull, AWorkerOfAnotherRoleGivesPrefixesAway) {
  Start();
  rig_->prefills[0]->prefill->BeginDrain();
  rig_->RunFor(milliseconds(5));
  rig_->prefills[0]->prefill->StandBy();
  rig_->RunFor(milliseconds(5));
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  ExpectAllBack();
}

TEST_F(PrefixPull, RequestsWithTheSameBeginningShareOnePull) {
  Start();
  int asked = 0;
  rig_->kv_links.on_up = [&](v1::DecodeToPrefill& message) {
    asked += message.has_prefill() ? 1 : 0;
    return true;
  };
  const auto longer = Longer(40);
  for (uint64_t id = 1; id <= 4; ++id) rig_->router->Generate("d", Pulling(id, longer));
  for (uint64_t id = 1; id <= 4; ++id) {
    rig_->ExpectAnswer(id, longer, 8);
    EXPECT_EQ(Pulled(id).result(), v1::PrefixPull::FILLED);
  }
  EXPECT_EQ(asked, 1);
  ExpectAllBack();
}

TEST_F(PrefixPull, WhatTheHolderHasEvictedIsComputedAtOnce) {
  Start();
  rig_->prefills[0]->engine->blocks().ClearCache();
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::MISSED);
  EXPECT_EQ(Pulled(1).tokens(), 0u);
  EXPECT_THAT(rig_->router->answers.at(1).timings.at(0).fallback(), ::testing::HasSubstr("cached"));
  ExpectAllBack();
}

TEST_F(PrefixPull, OfWhatTheHolderStillHasNothingIsComputed) {
  Start();
  // Different tokens from the fourth block on: its cache holds three blocks of this prompt.
  std::vector<TokenId> other(prompt_.begin(), prompt_.begin() + 50);
  const auto tail = MakePrompt(60, 99);
  other.insert(other.end(), tail.begin(), tail.end());
  rig_->router->Generate("d", Pulling(1, other));
  rig_->ExpectAnswer(1, other, 8);
  EXPECT_EQ(Pulled(1).tokens(), 48u);
  ExpectAllBack();
}

// Pinned from the moment at which the holder reports the hit.
TEST_F(PrefixPull, WhatIsBeingWrittenIsNotEvicted) {
  Start();
  rig_->prefills[0]->transport->hold = true;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->prefills[0]->transport->queued() > 0; }));
  // Other prompts need sixty of its sixty-four blocks.
  Engine& holder = *rig_->prefills[0]->engine;
  EXPECT_EQ(holder.blocks().Available(), 64 - 6);
  auto all = holder.blocks().Reserve(58);
  ASSERT_TRUE(all);
  EXPECT_FALSE(holder.blocks().Reserve(1));
  rig_->prefills[0]->transport->hold = false;
  rig_->prefills[0]->transport->Land();
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  *all = Reservation();
  ExpectAllBack();
}

TEST_F(PrefixPull, AHolderThatSaysNothingCostsTheTimeToBegin) {
  Start();
  rig_->prefills[0]->paused = true;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  const Instant asked = rig_->clock.Now();
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_LT(rig_->clock.Now() - asked, milliseconds(300));
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::LATE);
  rig_->prefills[0]->paused = false;
  ExpectAllBack();
}

TEST_F(PrefixPull, AGrantThatIsNotFilledInTimeComesBackWithTheAcknowledgement) {
  Start();
  rig_->prefills[0]->transport->hold = true;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::LATE);
  rig_->RunFor(milliseconds(500));
  // All blocks that were granted, although the holder has only six of the eight.
  EXPECT_EQ(rig_->decode->engine->blocks().Stats().quarantined, 8);
  rig_->prefills[0]->transport->hold = false;
  rig_->prefills[0]->transport->Land();
  ExpectAllBack();
}

TEST_F(PrefixPull, AHolderThatDiesWhileItWritesGivesItsGrantBackByItsDeath) {
  Start();
  rig_->prefills[0]->transport->hold = true;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->prefills[0]->transport->queued() > 0; }));
  rig_->KillPrefill(0, /*proof=*/true);
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FAILED);
  ExpectAllBack();
}

TEST_F(PrefixPull, AReaderThatDiesWhileItIsWrittenToLeavesNothingBehind) {
  Start();
  rig_->prefills[0]->transport->hold = true;
  rig_->router->Generate("d", Pulling(1, Longer(40)));
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->prefills[0]->transport->queued() > 0; }));
  BlockManager& holder = rig_->prefills[0]->engine->blocks();
  ASSERT_GT(holder.Stats().pinned, 0);
  rig_->KillDecode();
  rig_->RunFor(milliseconds(5));
  EXPECT_GT(holder.Stats().pinned, 0) << "what is still being read stays where it is";
  rig_->prefills[0]->transport->hold = false;
  rig_->prefills[0]->transport->Land();
  rig_->RunFor(milliseconds(50));
  EXPECT_EQ(holder.Stats().pinned, 0);
}

TEST_F(PrefixPull, ALaneThatFallsIsNoFaultOfTheRequest) {
  Start();
  rig_->prefills[0]->transport->fail_next_write = Unavailable("the lane fell");
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FAILED);
  ExpectAllBack();
}

TEST_F(PrefixPull, ABlockThatIsNotWhatWasWrittenIsNotRead) {
  Start();
  rig_->prefills[0]->transport->spoil = 1;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FAILED);
  ExpectAllBack();
}

// A peer that lies about sizes: more than was asked for, odd sizes, fewer than were granted.
TEST_F(PrefixPull, AHolderThatLiesIsNotBelieved) {
  const std::vector<std::function<void(v1::PrefillToDecode&)>> lies = {
      [](v1::PrefillToDecode& m) {
        if (m.has_need()) m.mutable_need()->set_held_tokens(1u << 31);
      },
      [](v1::PrefillToDecode& m) {
        if (m.has_need()) m.mutable_need()->set_held_tokens(112);
      },
      [](v1::PrefillToDecode& m) {
        if (m.has_need()) m.mutable_need()->set_held_tokens(17);
      },
      [](v1::PrefillToDecode& m) {
        if (m.has_done()) m.mutable_done()->set_token_layers(1);
      },
      [](v1::PrefillToDecode& m) {
        if (m.has_done()) m.mutable_done()->set_epoch(12345);
      },
      [](v1::PrefillToDecode& m) {
        if (m.has_done()) m.mutable_done()->clear_token_layers();
      },
      [](v1::PrefillToDecode& m) {
        if (m.has_done()) m.mutable_done()->mutable_block_checks()->RemoveLast();
      }};
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    Start();
    rig_->kv_links.on_down = [&](v1::PrefillToDecode& message) {
      lies[i](message);
      return true;
    };
    const auto longer = Longer(10);
    rig_->router->Generate("d", Pulling(1, longer));
    rig_->ExpectAnswer(1, longer, 8);
    EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FAILED);
    ExpectAllBack();
  }
}

// A reader that lies: the holder writes nothing for it. Its messages are consistent; only the
// original request shows that they are false.
TEST_F(PrefixPull, AHolderWhoseLiesFitTogetherIsNotBelieved) {
  for (const uint32_t held : {112u, 17u, 1u << 20}) {
    SCOPED_TRACE(held);
    Start();
    const auto layers = static_cast<uint64_t>(rig_->decode->engine->blocks().layout().num_layers);
    rig_->kv_links.on_down = [&](v1::PrefillToDecode& m) {
      if (m.has_need()) m.mutable_need()->set_held_tokens(held);
      if (m.has_done()) m.mutable_done()->set_token_layers(held * layers);
      if (m.has_done()) m.mutable_done()->clear_block_checks();
      return true;
    };
    const auto longer = Longer(10);
    rig_->router->Generate("d", Pulling(1, longer));
    rig_->ExpectAnswer(1, longer, 8);
    EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FAILED);
    ExpectAllBack();
  }
}

TEST_F(PrefixPull, AReaderThatGrantsWhatIsNotThereGetsNothing) {
  const std::vector<std::function<void(v1::Grant&)>> lies = {[](v1::Grant& g) { g.set_blocks(2, 5000); },
                                                             [](v1::Grant& g) { g.set_blocks(0, -1); },
                                                             [](v1::Grant& g) { g.set_first_token(3); },
                                                             [](v1::Grant& g) { g.set_first_token(96); },
                                                             [](v1::Grant& g) { g.set_first_token(1u << 31); },
                                                             [](v1::Grant& g) { g.clear_blocks(); }};
  for (size_t i = 0; i < lies.size(); ++i) {
    SCOPED_TRACE(i);
    Start();
    rig_->kv_links.on_up = [&](v1::DecodeToPrefill& message) {
      if (message.prefill().has_grant()) lies[i](*message.mutable_prefill()->mutable_grant());
      return true;
    };
    const size_t written = rig_->prefills[0]->transport->writes_started();
    const auto longer = Longer(40);
    rig_->router->Generate("d", Pulling(1, longer));
    rig_->ExpectAnswer(1, longer, 8);
    EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FAILED);
    EXPECT_EQ(rig_->prefills[0]->transport->writes_started(), written);
    ExpectAllBack();
  }
}

TEST_F(PrefixPull, CancelledAtAnyStepItLeavesNothingBehind) {
  for (const bool owner_copies : {false, true}) {
    for (int turns = 0; turns < 12; ++turns) {
      SCOPED_TRACE(turns);
      RigOptions options;
      options.owner_copies = owner_copies;
      options.in_step = turns % 3 == 1;
      Start(options);
      rig_->router->Generate("d", Pulling(1, Longer(40)));
      for (int i = 0; i < turns && !rig_->Finished(1); ++i) rig_->Turn();
      rig_->router->Cancel("d", 1);
      ExpectAllBack();
    }
  }
}

TEST_F(PrefixPull, OneOfTwoThatWaitIsCancelledAndTheOtherGetsThePrefix) {
  Start();
  rig_->prefills[0]->transport->hold = true;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->router->Generate("d", Pulling(2, longer));
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->prefills[0]->transport->queued() > 0; }));
  rig_->router->Cancel("d", 1);
  rig_->RunFor(milliseconds(2));
  rig_->prefills[0]->transport->hold = false;
  rig_->prefills[0]->transport->Land();
  rig_->ExpectAnswer(2, longer, 8);
  EXPECT_EQ(Pulled(2).result(), v1::PrefixPull::FILLED);
  ExpectAllBack();
}

TEST_F(PrefixPull, ADeadlineThatStrikesOnTheWayEndsThePull) {
  Start();
  rig_->prefills[0]->transport->hold = true;
  v1::GenerateRequest request = Pulling(1, Longer(40));
  request.set_timeout_ms(20);
  rig_->router->Generate("d", request);
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->Finished(1); }));
  EXPECT_EQ(rig_->router->answers.at(1).finish, v1::FINISH_ERROR);
  rig_->prefills[0]->transport->hold = false;
  rig_->prefills[0]->transport->Land();
  ExpectAllBack();
}

TEST_F(PrefixPull, AHolderGivesAFewPrefixesAtATime) {
  RigOptions options;
  options.prefill.holder.max_pushes = 1;
  Start(options);
  rig_->prefills[0]->transport->hold = true;
  const auto longer = Longer(40);
  std::vector<TokenId> other(prompt_.begin(), prompt_.begin() + 60);
  rig_->router->Generate("d", Pulling(1, longer));
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->prefills[0]->transport->queued() > 0; }));
  // Of another scope, so that it shares nothing: the holder is asked all the same.
  v1::GenerateRequest second = Pulling(2, Longer(20, 3));
  second.set_cache_salt("another tenant");
  rig_->router->Generate("d", second);
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->Finished(2); }));
  EXPECT_EQ(Pulled(2).result(), v1::PrefixPull::REFUSED);
  rig_->prefills[0]->transport->hold = false;
  rig_->prefills[0]->transport->Land();
  rig_->ExpectAnswer(1, longer, 8);
  ExpectAllBack();
}

TEST_F(PrefixPull, AnotherTenantsPrefixIsNotGivenAway) {
  Start();
  v1::GenerateRequest request = Pulling(1, Longer(40));
  request.set_cache_salt("another tenant");
  rig_->router->Generate("d", request);
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->Finished(1); }));
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::MISSED);
  ExpectAllBack();
}

// The KV of an adapter is different, though the tokens are the same.
TEST_F(PrefixPull, AnotherAdaptersPrefixIsNotGivenAway) {
  Start();
  int asked = 0;
  rig_->kv_links.on_up = [&](v1::DecodeToPrefill& m) {
    if (m.has_prefill() && m.prefill().cached_only()) {
      ++asked;
      m.mutable_prefill()->set_adapter("digest of another one");
    }
    return true;
  };
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::MISSED);
  EXPECT_EQ(Computed(), 141u + 7u);
  const Engine& engine = *rig_->decode->engine;
  EXPECT_NE(engine.RootOf("", ""), engine.RootOf("", "a"));
  EXPECT_NE(engine.RootOf("", "a"), engine.RootOf("", "b"));
  EXPECT_NE(engine.RootOf("a", ""), engine.RootOf("", "a"));
  ExpectAllBack();
}

// The holder computes one layer after the other on the thread that receives pulls. The pull
// finishes before the step in which it was requested.
TEST_F(PrefixPull, NobodyWaitsForTheEndOfAStep) {
  for (const bool in_step : {false, true}) {
    RigOptions options;
    options.in_step = in_step;
    options.limits.max_batch_tokens = 32;
    options.limits.max_prefill_chunk = 32;
    Start(options);
    const uint64_t steps = rig_->prefills[0]->executor->steps();
    const auto other = MakePrompt(300, 9);
    rig_->router->Generate("d", rig_->MakeRequest(2, other, 4));
    ASSERT_TRUE(rig_->RunUntil([&] { return rig_->prefills[0]->executor->steps() > steps; }));
    const auto longer = Longer(40);
    rig_->router->Generate("d", Pulling(1, longer));
    rig_->Turn();
    const Engine& reader = *rig_->decode->engine;
    EXPECT_EQ(reader.blocks().MatchLength(reader.RootOf("", ""), longer, 96), in_step ? 96 : 0);
    rig_->ExpectAnswer(1, longer, 8);
    rig_->ExpectAnswer(2, other, 4);
    EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
    ExpectAllBack();
  }
}

// Every round trip has a cost: one message there, one back, no timer.
TEST_F(PrefixPull, TwoMessagesAndNoTimer) {
  Start();
  int up = 0, down = 0;
  rig_->kv_links.on_up = [&](v1::DecodeToPrefill&) { return ++up > 0; };
  rig_->kv_links.on_down = [&](v1::PrefillToDecode& message) {
    down += message.has_need() ? 0 : 1;  // nobody waits for that one
    return true;
  };
  const auto longer = Longer(40);
  const Instant asked = rig_->clock.Now();
  rig_->router->Generate("d", Pulling(1, longer));
  const Engine& reader = *rig_->decode->engine;
  while (reader.blocks().MatchLength(reader.RootOf("", ""), longer, 96) < 96) {
    ASSERT_LE(rig_->clock.Now() - asked, 2 * rig_->tick);
    rig_->Turn();
    rig_->clock.Advance(rig_->tick);
  }
  EXPECT_EQ(up, 1);
  EXPECT_EQ(down, 1);
  rig_->ExpectAnswer(1, longer, 8);
  ExpectAllBack();
}

// Two workers pull the prefix while it is evicted: between the holder's answer and its writes, and
// before both.
TEST_F(PrefixPull, EvictedBetweenTwoPullsOneHasItAndTheOtherComputes) {
  Start();
  Engine& holder = *rig_->prefills[0]->engine;
  rig_->prefills[0]->transport->hold = true;
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->prefills[0]->transport->queued() > 0; }));
  // Other prompts take all blocks that are not pinned; blocks that are being written stay.
  auto all = holder.blocks().Reserve(holder.blocks().Available());
  ASSERT_TRUE(all);
  v1::GenerateRequest second = Pulling(2, Longer(20, 3));
  second.set_cache_salt("another tenant");
  rig_->router->Generate("d", second);
  ASSERT_TRUE(rig_->RunUntil([&] { return rig_->Finished(2); }));
  EXPECT_EQ(Pulled(2).result(), v1::PrefixPull::MISSED);
  rig_->prefills[0]->transport->hold = false;
  rig_->prefills[0]->transport->Land();
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(Pulled(1).tokens(), 96u);
  // Now that they are unpinned they can be evicted, and a third reader gets a miss.
  const std::vector<BlockId> had(all->blocks().begin(), all->blocks().end());
  auto rest = holder.blocks().Reserve(holder.blocks().Available());
  ASSERT_TRUE(rest);
  rig_->decode->engine->blocks().ClearCache();
  rig_->router->Generate("d", Pulling(3, longer));
  rig_->ExpectAnswer(3, longer, 8);
  EXPECT_EQ(Pulled(3).result(), v1::PrefixPull::MISSED);
  *all = Reservation();
  *rest = Reservation();
  ExpectAllBack();
}

}  // namespace
}  // namespace aisp
