// A draft model equal to the target is never wrong: a rejected token means that it was drawn from
// KV that is missing, stale or another sequence's.
#include "engine/draft_model.h"

#include <gtest/gtest.h>

#include "speculation/speculator.h"
#include "tests/engine/engine_harness.h"

namespace aisp {
namespace {

constexpr int32_t kSlots = 4;

ProvenanceOptions Model(int32_t blocks) {
  ProvenanceOptions model;
  model.num_blocks = blocks;
  model.max_slots = kSlots;
  model.max_draws = 40;
  return model;
}

// An engine that verifies every sequence's whole draft.
struct Rig {
  Rig(int32_t target_blocks, int32_t draft_blocks, int32_t catch_up) {
    auto draft = std::make_unique<ProvenanceExecutor>(Model(draft_blocks));
    executor = draft.get();
    auto made = std::make_unique<DraftModelProposer>(
        DraftModelOptions{.catch_up_tokens = catch_up, .min_probability = 0}, std::move(draft),
        &clock);
    proposer = made.get();
    EngineOptions options;
    options.limits.max_sequences = kSlots;
    options.limits.max_batch_tokens = 64;
    options.limits.max_draft_rows = 32;
    options.speculator = std::make_shared<Speculator>(
        SpeculatorOptions{.num_tokens = 4, .adaptive = false}, std::move(made), &clock);
    harness.emplace(Model(target_blocks), options);
  }

  ManualClock clock;
  ProvenanceExecutor* executor = nullptr;
  DraftModelProposer* proposer = nullptr;
  std::optional<EngineHarness> harness;
};

TEST(DraftModel, OfTheTargetItselfEveryTokenIsAccepted) {
  Rig rig(64, 64, 256);
  const SequenceId id = rig.harness->Add(MakeRequest(SomeTokens(30, 1), 61));
  rig.harness->Run();
  rig.harness->ExpectOracle(id);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_EQ(rig.harness->accepted, 48u);  // of the 60 after the first: 12 steps of 4 and 1
  EXPECT_EQ(rig.proposer->sequences(), 0u);
  EXPECT_EQ(rig.proposer->free_blocks(), 64);
}

TEST(DraftModel, ALongPromptIsTakenUpInBoundedChunks) {
  Rig rig(128, 128, 50);
  rig.harness->Add(MakeRequest(SomeTokens(420, 2), 60));
  uint64_t rows = 0, most = 0;
  int steps_without = 0;
  while (rig.harness->Step()) {
    most = std::max(most, rig.executor->rows_computed() - rows);
    rows = rig.executor->rows_computed();
    if (rows > 0 && rig.harness->drafted == 0) ++steps_without;
  }
  EXPECT_LE(most, 50u + 4u);
  EXPECT_GE(steps_without, 7);
  EXPECT_LE(steps_without, 9);
  EXPECT_GT(rig.harness->accepted, 30u);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  rig.harness->ExpectAllOracle();
}

TEST(DraftModel, ASequenceThatWasLeftAloneForAWhileCatchesUp) {
  Rig rig(64, 64, 16);
  DraftContext context;
  SequenceRequest request = MakeRequest(SomeTokens(30, 3), 200);
  const std::vector<TokenId> all = ExpectedTokens(Model(64), request.tokens, 150, 1);
  request.tokens.reserve(400);
  context.sequence = SequenceId(5);
  context.prompt_tokens = 30;
  context.limit = 3;
  context.sampling = &request.sampling;
  context.request = &request;
  const auto propose = [&] {
    context.tokens = request.tokens;
    TokenDraft draft;
    EXPECT_TRUE(rig.proposer->Propose({&context, 1}, {&draft, 1}).has_value());
    return draft.tokens;
  };
  const auto expected = [&] {
    const size_t drawn = request.tokens.size() - 30;
    return std::vector<TokenId>(all.begin() + static_cast<ptrdiff_t>(drawn),
                                all.begin() + static_cast<ptrdiff_t>(drawn) + 3);
  };
  EXPECT_TRUE(propose().empty());  // 29 tokens, 16 per call
  EXPECT_EQ(propose(), expected());
  const auto draw = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) request.tokens.push_back(all[request.tokens.size() - 30]);
  };
  for (const size_t count : {1, 2, 3, 4, 5, 6, 17}) {
    draw(count);
    EXPECT_EQ(propose(), expected()) << count;
  }
  draw(40);
  EXPECT_TRUE(propose().empty());
  EXPECT_TRUE(propose().empty());
  EXPECT_EQ(propose(), expected());
  EXPECT_EQ(propose(), expected());  // nothing was drawn meanwhile
}

TEST(DraftModel, AFullPoolTakesFromWhoWasNotAskedForLongest) {
  Rig rig(128, 6, 256);  // one sequence of 60 and its draft need four blocks
  for (uint64_t seed = 1; seed <= 12; ++seed)
    rig.harness->Add(MakeRequest(SomeTokens(40, seed), 30, seed));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_GT(rig.harness->accepted, 30u);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_EQ(rig.proposer->free_blocks(), 6);
}

TEST(DraftModel, ThatFailsIsSwitchedOffAndTheRequestsGoOn) {
  Rig rig(64, 64, 256);
  for (uint64_t seed = 1; seed <= 3; ++seed)
    rig.harness->Add(MakeRequest(SomeTokens(20, seed), 40, seed));
  for (int i = 0; i < 5; ++i) rig.harness->Step();
  rig.executor->fail_every_launch = Error{Code::kInternal, "the draft's device is gone"};
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->engine.speculator()->stats().failed, 3u);
  EXPECT_EQ(rig.proposer->sequences(), 0u);
  EXPECT_EQ(rig.proposer->free_blocks(), 64);
}

TEST(DraftModel, ARowThatFailsEndsItsDraftOnly) {
  Rig rig(64, 64, 256);
  rig.executor->row_fault = [](const SampleRow& row) {
    return row.position % 3 == 0 ? Status(Internal("not finite")) : Status();
  };
  rig.harness->Add(MakeRequest(SomeTokens(20, 1), 40));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_GT(rig.harness->accepted, 10u);
  EXPECT_EQ(rig.harness->engine.speculator()->stats().failed, 0u);
}

TEST(DraftModel, PenaltiesMasksAndStopTokensAreTheTargets) {
  Rig rig(64, 64, 256);
  SplitMix64 random(4);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SequenceRequest request =
        MakeRequest(SomeTokens(10 + static_cast<int32_t>(seed), seed), 40, seed);
    if (seed % 2 == 0) request.sampling.presence_penalty = 0.5f;
    if (seed % 3 == 0) request.guide = std::make_shared<HashGuide>(seed, 1000, 5 + seed);
    if (seed % 5 == 0) {
      for (TokenId t = 0; t < 100; ++t) request.stop_token_ids.push_back(t);
      request.min_new_tokens = 12;
    }
    request.sampling.choice = static_cast<uint32_t>(seed % 3);
    rig.harness->Add(request);
  }
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_GT(rig.harness->accepted, 500u);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
}

}  // namespace
}  // namespace aisp
