// Verify steps: several rows and draws of a sequence in one step, which tokens are accepted, and
// the KV of the others.
#include <gtest/gtest.h>

#include "tests/engine/engine_harness.h"

namespace aisp {
namespace {

struct Case {
  int32_t depth;
  int32_t right;  // correct draft tokens, then one wrong one
};

class EngineDraft : public testing::TestWithParam<Case> {
 protected:
  static ProvenanceOptions M() {
    ProvenanceOptions model;
    model.max_depth = GetParam().depth;
    model.max_slots = 8;
    model.max_draws = 8 + 24;
    return model;
  }
  static EngineOptions WithDrafts(int32_t rows = 24) {
    EngineOptions options;
    options.limits.max_draft_rows = rows;
    return options;
  }

  // Drafts the oracle's tokens for every sequence, with a mistake after `right` tokens.
  void ProposeForAll(EngineHarness& h) {
    for (const auto& [id, o] : h.outcomes) {
      if (o.ended) continue;
      const std::vector<TokenId> all = ExpectedOutput(M(), o.request).tokens;
      std::vector<TokenId> proposed;
      for (size_t i = o.drawn.size(); i < all.size() && proposed.size() < 6; ++i) {
        const bool wrong = static_cast<int32_t>(proposed.size()) == GetParam().right;
        proposed.push_back(wrong ? (all[i] + 1) % 1000 : all[i]);
      }
      h.engine.Propose(id, proposed);
    }
  }
  int Run(EngineHarness& h, bool proposes) {
    int steps = 0;
    do {
      if (proposes) ProposeForAll(h);
      ++steps;
    } while (h.Step() && steps < 10000);
    return steps;
  }
};

INSTANTIATE_TEST_SUITE_P(DepthsAndMistakes, EngineDraft,
                         testing::Values(Case{1, 0}, Case{1, 1}, Case{1, 3}, Case{1, 6}, Case{2, 0},
                                         Case{2, 2}, Case{2, 6}),
                         [](const auto& made) {
                           return "depth" + std::to_string(made.param.depth) + "_right" +
                                  std::to_string(made.param.right);
                         });

TEST_P(EngineDraft, TheTokensAreThoseWithoutProposals) {
  int plain_steps = 0;
  for (const bool proposes : {false, true}) {
    EngineHarness h(M(), WithDrafts());
    h.Add(MakeRequest(SomeTokens(20, 1), 70, 1));
    h.Add(MakeRequest(SomeTokens(33, 2), 41, 2));
    SequenceRequest stops = MakeRequest(SomeTokens(5, 3), 60, 3);
    stops.stop_token_ids = {ExpectedOutput(M(), stops).tokens[17]};
    h.Add(stops);
    const int steps = Run(h, proposes);
    h.ExpectAllOracle();
    h.ExpectIdle();
    if (!proposes) plain_steps = steps;
    // At depth 2 a sequence usually has a step in flight when it could be drafted for, except when
    // it runs alone after its own verify step.
    if (proposes && GetParam().right >= 3 && GetParam().depth == 1) {
      EXPECT_LT(steps, plain_steps / 2);
    }
  }
}

TEST_P(EngineDraft, ADrawBehindAProposalThatFindsNoRoomIsDrawnLater) {
  EngineHarness h(M(), WithDrafts());
  uint64_t step = 0;
  int drawn = 0;
  h.executor.row_fault = [&](const SampleRow&) -> Status {
    if (h.executor.steps() != step) drawn = 0;
    step = h.executor.steps();
    return drawn++ < 3 ? Status() : ResourceExhausted("no room");
  };
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SequenceRequest request = MakeRequest(SomeTokens(20, seed), 40, seed);
    request.sampling.frequency_penalty = 0.5f;
    h.Add(request);
  }
  Run(h, true);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineDraft, APrefixOfAcceptedTokensIsCachedAndOfRejectedOnesIsNot) {
  EngineHarness h(M(), WithDrafts());
  const SequenceRequest request = MakeRequest(SomeTokens(20, 9), 45);
  h.Add(request);
  Run(h, true);
  std::vector<TokenId> next = request.tokens;
  for (const TokenId t : ExpectedOutput(M(), request).tokens) next.push_back(t);
  const SequenceId second = h.Add(MakeRequest(next, 4));
  h.Run();
  EXPECT_EQ(h.engine.Times(second).cached_tokens, 64);
  h.ExpectAllOracle();
}

TEST_P(EngineDraft, NobodyIsPreemptedForAProposal) {
  ProvenanceOptions model = M();
  model.num_blocks = 8;
  EngineHarness h(model, WithDrafts());
  for (uint64_t i = 1; i <= 3; ++i) h.Add(MakeRequest(SomeTokens(12, i), 40, i));
  Run(h, true);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineDraft, APreemptedOrCancelledSequenceForgetsItsProposal) {
  ProvenanceOptions model = M();
  model.num_blocks = 5;
  EngineHarness h(model, WithDrafts());
  const SequenceId first = h.Add(MakeRequest(SomeTokens(30, 1), 20, 1));
  const SequenceId second = h.Add(MakeRequest(SomeTokens(30, 2), 20, 2));
  for (int i = 0; i < 6; ++i) {
    ProposeForAll(h);
    h.Step();
  }
  h.engine.Cancel(second);
  h.outcomes.erase(second);
  Run(h, true);
  h.ExpectOracle(first);
  h.ExpectIdle();
}

TEST(EngineDrafts, WithoutRowsForThemProposalsAreNothing) {
  ProvenanceOptions model;
  EngineOptions options;
  options.limits.max_draft_rows = 8;  // the executor has only one draw per slot
  options.limits.max_sequences = model.max_slots;
  EngineHarness h(model, options);
  const SequenceId id = h.Add(MakeRequest(SomeTokens(10, 1), 10));
  h.Step();
  h.engine.Propose(id, std::vector<TokenId>{1, 2, 3});
  h.Step();
  EXPECT_EQ(h.last_timing.decode_rows, 1);
  h.Run();
  h.ExpectAllOracle();
}

TEST(EngineDrafts, ProposedTokensOutsideTheVocabularyAreCutOff) {
  ProvenanceOptions model;
  model.max_draws = 2 * model.max_slots;
  EngineOptions options;
  options.limits.max_draft_rows = 8;
  EngineHarness h(model, options);
  const SequenceId id = h.Add(MakeRequest(SomeTokens(10, 1), 10));
  h.Step();
  h.engine.Propose(id, std::vector<TokenId>{1, 2, 5000, 3});
  h.Step();
  EXPECT_EQ(h.last_timing.decode_rows, 3);
  h.Run();
  h.ExpectAllOracle();
}

}  // namespace
}  // namespace aisp
