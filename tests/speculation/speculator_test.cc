#include "speculation/speculator.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

// Proposes the same token as often as allowed. A token takes `token_time`, the first call
// `first_time` more.
class CostlyProposer final : public Proposer {
 public:
  explicit CostlyProposer(ManualClock* clock) : clock_(clock) {}
  std::string_view name() const override { return "costly"; }
  bool costly() const override { return true; }
  bool at_once() const override { return draft_time != Duration{}; }
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
    clock_->Advance(longest * token_time + draft_time);
    return {};
  }
  void Ended(const DraftContext&) override {}

  Duration token_time{}, first_time{};
  Duration draft_time{};  // of a draft of any length
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

  // A step of one sequence; returns the number of verified tokens, all of which are accepted.
  int32_t Step() {
    SpeculativeSequence s;
    s.context.sequence = SequenceId(1);
    s.context.tokens = tokens_;
    s.context.limit = 8;
    VerifyStep shape;
    shape.rows = shape.sequences = 1;
    shape.context_tokens = 3;
    shape.max_drafts = 16;
    speculator_->Propose({&s, 1}, shape);
    speculator_->Choose({&s, 1}, shape);
    speculator_->StepTook(1 + s.rows, s.rows, 3, std::chrono::microseconds(1000 + 10 * s.rows));
    speculator_->Verified(SequenceId(1), s.rows, s.rows, false);
    return s.rows;
  }

  ManualClock clock_;
  CostlyProposer* proposer_ = nullptr;
  std::unique_ptr<Speculator> speculator_;
  const std::vector<TokenId> tokens_{1, 2, 3};
};

TEST_F(SpeculatorTest, ACostlyProposerThatDidNotPayIsAskedAgain) {
  proposer_->token_time = std::chrono::milliseconds(20);  // a step takes 1 ms
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

TEST_F(SpeculatorTest, AFirstCallThatWasHeldUpIsNotThePriceOfAToken) {
  proposer_->token_time = std::chrono::milliseconds(20);  // a step takes 1 ms
  Step();
  proposer_->token_time = std::chrono::microseconds(20);
  int32_t verified = 0;
  for (int i = 0; i < 40; ++i) verified += Step();
  EXPECT_GT(verified, 60);
}

// One token would not pay, but four do: the next call asks for all of them.
TEST_F(SpeculatorTest, NorIsAFirstCallOfDraftsThatAreMadeAtOnce) {
  proposer_->draft_time = std::chrono::milliseconds(20);
  Step();
  proposer_->draft_time = std::chrono::microseconds(950);
  int32_t verified = 0;
  for (int i = 0; i < 200; ++i) verified += Step();
  EXPECT_GT(verified, 400);
}

TEST_F(SpeculatorTest, TakingUpAPromptIsNotThePriceOfAToken) {
  proposer_->token_time = std::chrono::microseconds(20);
  proposer_->first_time = std::chrono::milliseconds(50);
  for (int i = 0; i < 20; ++i) Step();  // steps without drafts were measured, too
  EXPECT_GT(proposer_->calls, 10);
  EXPECT_EQ(Step(), 4);
  EXPECT_EQ(proposer_->longest, 4);
}

TEST_F(SpeculatorTest, NorIsWaitingForOneThatNobodyTimed) {
  proposer_->token_time = std::chrono::microseconds(20);
  proposer_->first_time = std::chrono::milliseconds(50);
  proposer_->tells_time = false;
  for (int i = 0; i < 20; ++i) Step();
  EXPECT_GT(proposer_->calls, 10);
  EXPECT_EQ(Step(), 4);
}

TEST(Speculator, LooksSeldomerWhereNothingIsWorthARowOnADeviceThatRunsAhead) {
  ManualClock clock;
  for (const bool ahead : {false, true}) {
    Speculator speculator({}, nullptr, &clock);
    speculator.RunsOn({.sizes = {}, .ahead = ahead});
    std::vector<int32_t> waits;
    for (int i = 0; i < 6; ++i) {
      SpeculativeSequence s;
      s.context.sequence = SequenceId(1);
      speculator.Choose({&s, 1}, {.rows = 1, .sequences = 1, .max_drafts = 16});
      waits.push_back(speculator.plain_steps());
    }
    EXPECT_EQ(waits, ahead ? (std::vector<int32_t>{1, 2, 4, 8, 16, 16})
                           : (std::vector<int32_t>{1, 1, 1, 1, 1, 1}));
    SpeculativeSequence s;
    s.context.sequence = SequenceId(1);
    s.draft.Add(7, 0.9f);
    speculator.Choose({&s, 1}, {.rows = 1, .sequences = 1, .max_drafts = 16});
    EXPECT_EQ(s.rows, 1);
    EXPECT_EQ(speculator.plain_steps(), 0);
  }
}

// A forced run of three tokens at every step, `stand` of which are accepted.
struct Runs {
  ManualClock clock;
  Speculator speculator{SpeculatorOptions{}, nullptr, &clock};

  Runs() {
    for (int i = 0; i < 4; ++i) speculator.StepTook(1, 0, 3, std::chrono::microseconds(1000));
  }

  int32_t Step(int32_t stand) {
    SpeculativeSequence s;
    s.context.sequence = SequenceId(1);
    s.context.limit = 8;
    for (const TokenId token : {4, 5, 6}) s.draft.Add(token, 0.9f);
    s.forced = 3;
    const VerifyStep shape{.rows = 1, .sequences = 1, .context_tokens = 3, .max_drafts = 16};
    speculator.Propose({&s, 1}, shape);
    speculator.Choose({&s, 1}, shape);
    // Each further row costs a third of a step.
    speculator.StepTook(1 + s.rows, s.rows, 3, std::chrono::microseconds(1000 + 330 * s.rows));
    const int32_t accepted = std::min(s.rows, stand);
    speculator.Verified(SequenceId(1), s.rows, accepted, accepted < stand);
    return s.rows;
  }
};

TEST(ForcedRuns, AreVerifiedWithoutAProposer) {
  Runs runs;
  int whole = 0;
  for (int i = 0; i < 20; ++i) whole += runs.Step(3) == 3 ? 1 : 0;
  EXPECT_GT(whole, 12);  // some steps probed shorter drafts
  EXPECT_EQ(runs.Step(3), 3);
  EXPECT_EQ(runs.speculator.stats().proposals, 0u);
  EXPECT_FALSE(runs.speculator.has_proposer());
}

TEST(ForcedRuns, EndBeforeALastTokenThatIsDrawnOtherwiseEveryTime) {
  Runs runs;
  for (int i = 0; i < 60; ++i) runs.Step(2);
  EXPECT_EQ(runs.Step(2), 2);
}

TEST(ForcedRuns, ThatNeverStandCostNoRowsAndAreTriedAgainWhenTheyWouldStand) {
  Runs runs;
  for (int i = 0; i < 60; ++i) runs.Step(0);
  EXPECT_EQ(runs.Step(0), 0);
  for (int i = 0; i < 200; ++i) runs.Step(3);
  EXPECT_EQ(runs.Step(3), 3);
}

TEST(ForcedRuns, GoOnWithWhatAProposerThatNamesThemSaysBehindThem) {
  class Named final : public Proposer {
   public:
    std::string_view name() const override { return "named"; }
    Status Propose(std::span<const DraftContext>, std::span<TokenDraft> drafts) override {
      for (const TokenId token : said) drafts[0].Add(token, 0.8f);
      return {};
    }
    void Ended(const DraftContext&) override {}
    std::vector<TokenId> said;
  };
  ManualClock clock;
  auto owned = std::make_unique<Named>();
  Named& proposer = *owned;
  Speculator speculator({.num_tokens = 2}, std::move(owned), &clock);
  const auto draft = [&](std::vector<TokenId> said) {
    proposer.said = std::move(said);
    SpeculativeSequence s;
    s.context.sequence = SequenceId(1);
    s.context.limit = 8;
    for (const TokenId token : {4, 5}) s.draft.Add(token, 0.9f);
    s.forced = 2;
    speculator.Propose({&s, 1}, {});
    EXPECT_EQ(s.draft.confidence[0], 0.9f);
    EXPECT_EQ(s.draft.confidence.size(), s.draft.tokens.size());
    return s.draft.tokens;
  };
  EXPECT_EQ(draft({4, 5, 6, 7, 8}), (std::vector<TokenId>{4, 5, 6, 7}));  // two of its own
  EXPECT_EQ(draft({4, 9, 6}), (std::vector<TokenId>{4, 5}));
  EXPECT_EQ(draft({4}), (std::vector<TokenId>{4, 5}));
  EXPECT_EQ(draft({}), (std::vector<TokenId>{4, 5}));
}

}  // namespace
}  // namespace aisp
