// Heads that know the target's draws are never wrong, unless they read the features of another
// position or sequence, which tests/support/proving_medusa.h detects.
#include "engine/medusa.h"

#include <gtest/gtest.h>

#include "speculation/speculator.h"
#include "tests/engine/engine_harness.h"
#include "tests/support/proving_medusa.h"

namespace aisp {
namespace {

constexpr int32_t kSlots = 4;

ProvenanceOptions Model(int32_t blocks) {
  ProvenanceOptions model;
  model.num_blocks = blocks;
  model.max_slots = kSlots;
  model.max_draws = 40;
  model.gives_features = true;
  return model;
}

// An engine that verifies every sequence's whole draft.
struct Rig {
  // `places`: of a device; -1: on the host.
  explicit Rig(int32_t blocks = 64, int32_t num_tokens = 3, int32_t places = -1) {
    ProvenanceOptions model = Model(blocks);
    if (places >= 0) model.most_kept_features = 64;
    auto made = std::make_unique<ProvingMedusa>(model, places);
    medusa = made.get();
    EngineOptions options;
    options.limits.max_sequences = kSlots;
    options.limits.max_batch_tokens = 64;
    options.limits.max_prefill_chunk = 23;
    options.limits.max_draft_rows = 32;
    options.speculator = std::make_shared<Speculator>(
        SpeculatorOptions{.num_tokens = num_tokens, .adaptive = false}, std::move(made), &clock);
    harness.emplace(model, options);
  }

  ManualClock clock;
  ProvingMedusa* medusa = nullptr;
  std::optional<EngineHarness> harness;
};

TEST(Medusa, OfExactHeadsEveryTokenIsAccepted) {
  Rig rig;
  const SequenceId id = rig.harness->Add(MakeRequest(SomeTokens(100, 1), 61));
  rig.harness->Run();
  rig.harness->ExpectOracle(id);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_EQ(rig.harness->accepted, 45u);  // of the 60 after the first: 15 steps of 3 and 1
  EXPECT_EQ(rig.medusa->proposer->sequences(), 0u);
}

TEST(Medusa, ADraftIsAsLongAsThereAreHeads) {
  Rig rig(64, 8);
  rig.harness->Add(MakeRequest(SomeTokens(30, 1), 61));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->accepted, 45u);
}

// The last position of a prompt is always computed, wherever the preceding KV came from.
TEST(Medusa, BehindACachedPrefixItDraftsFromTheFirstStep) {
  Rig rig;
  rig.harness->Add(MakeRequest(SomeTokens(150, 4), 4, 1));
  rig.harness->Run();
  const uint64_t before = rig.harness->accepted;
  rig.harness->Add(MakeRequest(SomeTokens(150, 4), 41, 2));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->accepted - before, 30u);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
}

TEST(Medusa, StaysRightThroughPreemption) {
  Rig rig(10);
  for (uint64_t seed = 1; seed <= 8; ++seed)
    rig.harness->Add(MakeRequest(SomeTokens(30, seed), 60, seed));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_GT(rig.harness->engine.Preemptions(), 0u);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_GT(rig.harness->accepted, 200u);
}

// Features are in the device's format, and all draws of a draft are made at once; drafts are equal.
TEST(Medusa, OnADeviceItDraftsAsOnTheHost) {
  for (const int32_t blocks : {64, 10}) {
    Rig host(blocks), device(blocks, 3, kSlots);
    for (Rig* rig : {&host, &device}) {
      for (uint64_t seed = 1; seed <= 8; ++seed)
        rig->harness->Add(MakeRequest(SomeTokens(30, seed), 60, seed));
      rig->harness->Run();
      rig->harness->ExpectAllOracle();
      EXPECT_EQ(rig->harness->accepted, rig->harness->drafted);
      EXPECT_EQ(rig->medusa->proposer->sequences(), 0u);
    }
    EXPECT_EQ(device.harness->accepted, host.harness->accepted);
  }
}

// Sequences without a feature place wait for one; none gets another's features.
TEST(Medusa, OnADeviceOfFewPlacesSomeSequencesDraftNothing) {
  Rig rig(64, 3, 2);
  for (uint64_t seed = 1; seed <= 8; ++seed)
    rig.harness->Add(MakeRequest(SomeTokens(30, seed), 60, seed));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_GT(rig.harness->accepted, 90u);
  EXPECT_LT(rig.harness->accepted, 360u);  // all would be eight times 45
}

TEST(Medusa, OfATakeoverItDraftsFromTheFirstStep) {
  Rig rig;
  SequenceRequest request = MakeRequest(SomeTokens(30, 1), 61);
  for (const TokenId token : ExpectedTokens(Model(64), request.tokens, 20, 1))
    request.tokens.push_back(token);
  const SequenceId id = rig.harness->Add(request);
  rig.harness->Run();
  rig.harness->ExpectOracle(id);
  EXPECT_EQ(rig.harness->accepted, 30u);  // of the 40 after the first: 10 steps of 3 and 1
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
}

TEST(Medusa, ThatFailsIsSwitchedOffAndTheRequestsGoOn) {
  Rig rig;
  for (uint64_t seed = 1; seed <= 3; ++seed)
    rig.harness->Add(MakeRequest(SomeTokens(20, seed), 40, seed));
  for (int i = 0; i < 5; ++i) rig.harness->Step();
  rig.medusa->heads->fail = true;
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->engine.speculator()->stats().failed, 3u);
  EXPECT_EQ(rig.medusa->proposer->sequences(), 0u);
}

TEST(Medusa, WhoWantsNoDraftsGivesNoFeatures) {
  Rig rig;
  SequenceRequest request = MakeRequest(SomeTokens(30, 1), 20);
  request.max_draft_tokens = 0;
  rig.harness->Add(request);
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.medusa->heads->rows_run, 0u);
}

// Without the newest position's features there is no draft, not even from older ones.
TEST(Medusa, WithoutTheNewestPositionProposesNothing) {
  ProvingMedusa medusa(Model(64));
  SequenceRequest request = MakeRequest(SomeTokens(30, 1), 20);
  DraftContext context;
  context.sequence = SequenceId(5);
  context.prompt_tokens = 30;
  context.limit = 3;
  context.sampling = &request.sampling;
  context.request = &request;
  const std::vector<uint64_t> states = ExpectedStates(Model(64), request.tokens);
  const auto propose = [&] {
    context.tokens = request.tokens;
    TokenDraft draft;
    EXPECT_TRUE(medusa.Propose({&context, 1}, {&draft, 1}).has_value());
    return draft.tokens;
  };
  EXPECT_TRUE(propose().empty());
  const auto newest = FeaturesOf(states[28]);
  context.tokens = request.tokens;
  const ComputedRows rows{context, 28, std::as_bytes(std::span(newest))};
  ASSERT_TRUE(medusa.Computed({&rows, 1}).has_value());
  EXPECT_EQ(propose(), ExpectedTokens(Model(64), request.tokens, 3, 1));
  request.tokens.push_back(ExpectedTokens(Model(64), request.tokens, 1, 1).front());
  EXPECT_TRUE(propose().empty());
}

}  // namespace
}  // namespace aisp
