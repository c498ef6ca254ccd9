// Text forced by a constraint is drafted with and without a proposer; the drawn tokens are the same
// as without drafts.
#include <gtest/gtest.h>

#include "speculation/speculator.h"
#include "tests/engine/engine_harness.h"

namespace aisp {
namespace {

constexpr int32_t kVocabulary = 200;

// The first token of each word is free; the guide forces the others. Words have `length` tokens.
class WordGuide final : public DrawGuide {
 public:
  explicit WordGuide(size_t length, TokenId wrong = -1) : length_(length), wrong_(wrong) {}
  std::span<const uint32_t> Allowed() override {
    mask_.assign((kVocabulary + 31) / 32, free() ? ~0u : 0u);
    if (!free()) mask_[static_cast<size_t>(next()) / 32] = 1u << (next() % 32);
    return mask_;
  }
  bool Take(TokenId token) override {
    if (!free() && token != next()) return false;
    taken_.push_back(token);
    return true;
  }
  void Rewind(size_t count) override { taken_.resize(taken_.size() - count); }
  bool AtEnd() override { return false; }
  std::vector<TokenId> Forced(size_t limit) override {
    ++asked;
    std::vector<TokenId> out;
    if (free() && wrong_ >= 0) out.push_back(wrong_);
    for (size_t at = taken_.size(); at % length_ != 0 && out.size() < limit; ++at)
      out.push_back(Follower(out.empty() ? taken_.back() : out.back()));
    return out;
  }

  int asked = 0;

 private:
  static TokenId Follower(TokenId token) { return (token + 37) % kVocabulary; }
  bool free() const { return taken_.size() % length_ == 0; }
  TokenId next() const { return Follower(taken_.back()); }

  const size_t length_;
  const TokenId wrong_;  // forced wrongly, where any token may follow
  std::vector<TokenId> taken_;
  std::vector<uint32_t> mask_;
};

ProvenanceOptions Model(int32_t depth) {
  ProvenanceOptions model;
  model.max_depth = depth;
  model.max_slots = 8;
  model.max_draws = 8 + 24;
  model.vocabulary = kVocabulary;
  return model;
}

SequenceRequest Words(uint64_t seed, std::shared_ptr<DrawGuide> guide, int32_t tokens = 48) {
  SequenceRequest request = MakeRequest(SomeTokens(5, seed), tokens, seed);
  for (TokenId& t : request.tokens) t %= kVocabulary;
  request.guide = std::move(guide);
  return request;
}

// Drafts the oracle's tokens after those that it is shown.
class OracleProposer final : public Proposer {
 public:
  explicit OracleProposer(std::vector<TokenId> answer) : answer_(std::move(answer)) {}
  std::string_view name() const override { return "oracle"; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    for (size_t i = 0; i < contexts.size(); ++i) {
      const size_t drawn =
          contexts[i].tokens.size() - static_cast<size_t>(contexts[i].prompt_tokens);
      for (size_t at = drawn; at < answer_.size(); ++at) drafts[i].Add(answer_[at], 0.9f);
    }
    return {};
  }
  void Ended(const DraftContext&) override {}

 private:
  const std::vector<TokenId> answer_;
};

class EngineForced : public testing::TestWithParam<int> {
 protected:
  EngineOptions With(bool runs, std::unique_ptr<Proposer> proposer = nullptr,
                     bool adaptive = false) {
    EngineOptions options;
    options.limits.max_draft_rows = 24;
    options.speculator = std::make_shared<Speculator>(
        SpeculatorOptions{.num_tokens = 4, .adaptive = adaptive, .forced_runs = runs},
        std::move(proposer), &clock_);
    return options;
  }
  static int Steps(EngineHarness& h) {
    int steps = 0;
    while (h.Step() && steps < 10000) ++steps;
    return steps;
  }

  ManualClock clock_;
};

INSTANTIATE_TEST_SUITE_P(Depths, EngineForced, testing::Values(1, 2),
                         [](const auto& made) { return "depth" + std::to_string(made.param); });

TEST_P(EngineForced, ARunIsDrawnInOneStepAndNoTokenChanges) {
  std::vector<TokenId> answers[2];
  int steps[2] = {};
  for (const bool runs : {false, true}) {
    EngineHarness h(Model(GetParam()), With(runs));
    const SequenceId id = h.Add(Words(1, std::make_shared<WordGuide>(8)));
    steps[runs] = Steps(h);
    answers[runs] = h.outcomes[id].drawn;
    EXPECT_EQ(h.outcomes[id].finish, FinishReason::kLength);
    EXPECT_EQ(h.drafted, 0u);  // only the constraint drafts
    EXPECT_EQ(h.forced, h.forced_accepted);
    EXPECT_EQ(h.forced > 0, runs);
    h.ExpectIdle();
  }
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[1].size(), 48u);
  // A word of eight takes one step, or at depth 2 two and the one before.
  EXPECT_LE(steps[1], GetParam() == 1 ? steps[0] / 3 : steps[0] * 2 / 3);
}

TEST_P(EngineForced, ASequenceThatWantsNoProposerHasItsRunsAllTheSame) {
  EngineHarness h(
      Model(GetParam()),
      With(true, std::make_unique<OracleProposer>(std::vector<TokenId>(99, TokenId{5}))));
  SequenceRequest request = Words(2, std::make_shared<WordGuide>(6));
  request.max_draft_tokens = 0;
  h.Add(request);
  Steps(h);
  EXPECT_GT(h.forced_accepted, 20u);
  EXPECT_EQ(h.drafted, 0u);
}

TEST_P(EngineForced, AProposerGoesOnWhereARunEnds) {
  std::vector<TokenId> answer;
  {
    EngineHarness h(Model(GetParam()), With(false));
    const SequenceId id = h.Add(Words(3, std::make_shared<WordGuide>(4)));
    Steps(h);
    answer = h.outcomes[id].drawn;
  }
  EngineHarness h(Model(GetParam()), With(true, std::make_unique<OracleProposer>(answer)));
  const SequenceId id = h.Add(Words(3, std::make_shared<WordGuide>(4)));
  const int steps = Steps(h);
  EXPECT_EQ(h.outcomes[id].drawn, answer);
  EXPECT_GT(h.forced_accepted, 0u);
  EXPECT_GT(h.accepted, 8u);
  EXPECT_EQ(h.accepted, h.drafted);
  EXPECT_LT(steps, 20);
}

TEST_P(EngineForced, WhatIsNeverDrawnAsNamedIsSoonNotProposed) {
  EngineHarness h(Model(GetParam()), With(true, nullptr, /*adaptive=*/true));
  // Words of one token: nothing is forced, and the guide is wrong every time.
  const SequenceId id = h.Add(Words(4, std::make_shared<WordGuide>(1, TokenId{9}), 400));
  Steps(h);
  EXPECT_EQ(h.outcomes[id].drawn.size(), 400u);
  EXPECT_LT(h.forced, 100u);
}

TEST_P(EngineForced, ARunThatAStopTokenOrTheLimitEndsIsCutThere) {
  for (const int32_t limit : {3, 5, 9}) {
    EngineHarness h(Model(GetParam()), With(true));
    const SequenceId id = h.Add(Words(5, std::make_shared<WordGuide>(16), limit));
    Steps(h);
    EXPECT_EQ(h.outcomes[id].drawn.size(), static_cast<size_t>(limit));
    SequenceRequest stops = Words(5, std::make_shared<WordGuide>(16));
    stops.stop_token_ids = {h.outcomes[id].drawn.back()};
    const SequenceId stopped = h.Add(stops);
    Steps(h);
    EXPECT_EQ(h.outcomes[stopped].finish, FinishReason::kStop);
    EXPECT_EQ(h.outcomes[stopped].drawn, h.outcomes[id].drawn);
    h.ExpectIdle();
  }
}

TEST_P(EngineForced, WhoHasNoConstraintIsNotHeldUp) {
  EngineHarness h(Model(GetParam()), With(true));
  const SequenceId id = h.Add(MakeRequest({1, 2, 3}, 30));
  Steps(h);
  h.ExpectOracle(id);
  // At depth 2 every step but the first reads its token from the device.
  EXPECT_EQ(h.executor.rows_from_device(), GetParam() == 2 ? 29u : 0u);
}

TEST(EngineForcedRuns, AreNotAskedForWhereAStepHasNoRowsForThem) {
  ManualClock clock;
  EngineOptions options;
  options.speculator = std::make_shared<Speculator>(SpeculatorOptions{}, nullptr, &clock);
  EngineHarness h(Model(1), options);
  const auto guide = std::make_shared<WordGuide>(8);
  h.Add(Words(6, guide));
  h.Run();
  EXPECT_EQ(guide->asked, 0);
  EXPECT_EQ(h.forced, 0u);
}

}  // namespace
}  // namespace aisp
