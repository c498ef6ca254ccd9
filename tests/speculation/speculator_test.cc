#include "speculation/speculator.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

// Proposes the same token as often as it may; a token takes `token_time`, the first call
// `first_time` more.
class CostlyProposer final : public Proposer {
 public:
  explicit CostlyProposer(ManualClock* clock) : clock_(clock) {}
  std::string_view name() const override { return "costly"; }
  bool costly() const override { return true; }
  Duration catch_up() const override { return tells_time ? catch_up_ : Duration{}; }
  bool timed() const override { return tells_time || catch_up_ == Duration{}; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    catch_up_ = calls++ == 0 ? first_time : Duration{};
    clock_->Advance(catch_up_);
    longest = 0;
    for (size_t i = 0; i < contexts.size(); ++i) {
      for (int32_t at = 0; at < contexts[i].limit; ++at) drafts[i].Add(7, 0.9f);
      longest = std::max(longest, contexts[i].limit);
    }
    clock_->Advance(longest * token_time);
    return {};
  }
  void Ended(const DraftContext&) override {}

  Duration token_time{}, first_time{};
  bool tells_time = true;
  int calls = 0;
  int32_t longest = 0;

 private:
  ManualClock* const clock_;
  Duration catch_up_{};
};

class SpeculatorTest : public testing::Test {
 protected:
  SpeculatorTest() {
    auto proposer = std::make_unique<CostlyProposer>(&clock_);
    proposer_ = proposer.get();
    speculator_ = std::make_unique<Speculator>(SpeculatorOptions{.num_tokens = 4},
                                               std::move(proposer), &clock_);
  }

  // A step of one sequence; returns how many tokens were verified. Those that were stand.
  int32_t Step() {
    SpeculativeSequence s;
    s.context.sequence = SequenceId(1);
    s.context.tokens = tokens_;
    s.context.limit = 8;
    StepShape shape;
    shape.rows = shape.sequences = 1;
    shape.context_tokens = 3;
    shape.max_drafts = 16;
    speculator_->Propose({&s, 1}, shape);
    speculator_->Choose({&s, 1}, shape);
    speculator_->StepTook(1 + s.rows, 3, std::chrono::microseconds(1000 + 10 * s.rows));
    speculator_->Verified(SequenceId(1), s.rows, s.rows, false);
    return s.rows;
  }

  ManualClock clock_;
  CostlyProposer* proposer_ = nullptr;
  std::unique_ptr<Speculator> speculator_;
  const std::vector<TokenId> tokens_{1, 2, 3};
};

TEST_F(SpeculatorTest, ACostlyProposerThatDidNotPayIsAskedAgain) {
  proposer_->token_time = std::chrono::milliseconds(20);  // a step takes one
  for (int i = 0; i < 20; ++i) Step();
  const int calls = proposer_->calls;
  for (int i = 0; i < 20; ++i) EXPECT_EQ(Step(), 0);
  EXPECT_EQ(proposer_->calls, calls);  // it costs more than it brings

  proposer_->token_time = std::chrono::microseconds(20);
  int32_t verified = 0;
  for (int i = 0; i < 5000; ++i) verified += Step();
  EXPECT_GT(proposer_->calls, calls + 2000);
  EXPECT_GT(verified, 2000);
}

TEST_F(SpeculatorTest, WhatDoesNotPayIsAskedRarely) {
  proposer_->token_time = std::chrono::milliseconds(20);
  for (int i = 0; i < 6500; ++i) Step();
  EXPECT_LT(proposer_->calls, 150);
  EXPECT_GT(proposer_->calls, 50);
}

TEST_F(SpeculatorTest, TakingUpAPromptIsNotThePriceOfAToken) {
  proposer_->token_time = std::chrono::microseconds(20);
  proposer_->first_time = std::chrono::milliseconds(50);
  Step();
  EXPECT_GT(Step(), 0);
  EXPECT_EQ(proposer_->calls, 2);
  EXPECT_EQ(proposer_->longest, 4);
}

TEST_F(SpeculatorTest, NorIsWaitingForOneThatNobodyTimed) {
  proposer_->token_time = std::chrono::microseconds(20);
  proposer_->first_time = std::chrono::milliseconds(50);
  proposer_->tells_time = false;
  for (int i = 0; i < 5; ++i) EXPECT_GT(Step(), 0);
  EXPECT_EQ(proposer_->calls, 5);
}

}  // namespace
}  // namespace aisp
