// An exact head is never wrong: a rejected token means that it was drawn from KV or features that
// are missing, stale or another sequence's.
#include "engine/eagle.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "speculation/speculator.h"
#include "tests/engine/engine_harness.h"
#include "tests/support/provenance_head.h"

namespace aisp {
namespace {

constexpr int32_t kSlots = 4;

// `most_kept`: negative: features are in host memory (ProvenanceOptions).
ProvenanceOptions Model(int32_t blocks, int32_t most_kept = -1) {
  ProvenanceOptions model;
  model.most_kept_features = most_kept;
  model.num_blocks = blocks;
  model.max_slots = kSlots;
  model.max_draws = 40;
  model.gives_features = true;
  return model;
}

struct RigOptions {
  int32_t target_blocks = 64;
  int32_t head_blocks = 64;
  int32_t head_context = 4096;
  int32_t num_tokens = 4;
  int32_t max_prefill_chunk = 64;
  int32_t feature_window = Proposer::kWholePrompt;
  size_t feature_cache_bytes = 1 << 20;
  int32_t most_kept = -1;
  int32_t landings = 16;
};

// An engine that verifies every sequence's whole draft.
struct Rig {
  explicit Rig(const RigOptions& o = {}) {
    auto made_head = std::make_unique<ProvenanceHead>(
        Model(o.target_blocks, o.most_kept), ProvenanceHeadOptions{.num_blocks = o.head_blocks,
                                                                   .max_context = o.head_context,
                                                                   .max_rows = 50,
                                                                   .max_sequences = kSlots,
                                                                   .landings = o.landings});
    head = made_head.get();
    auto made = std::make_unique<EagleProposer>(
        EagleOptions{.min_probability = 0, .feature_window = o.feature_window},
        std::move(made_head));
    proposer = made.get();
    EngineOptions options;
    options.feature_cache_bytes = o.feature_cache_bytes;
    options.limits.max_sequences = kSlots;
    options.limits.max_batch_tokens = 64;
    options.limits.max_prefill_chunk = o.max_prefill_chunk;
    options.limits.max_draft_rows = 32;
    options.speculator = std::make_shared<Speculator>(
        SpeculatorOptions{.num_tokens = o.num_tokens, .adaptive = false}, std::move(made), &clock);
    harness.emplace(Model(o.target_blocks, o.most_kept), options);
  }

  ManualClock clock;
  ProvenanceHead* head = nullptr;
  EagleProposer* proposer = nullptr;
  std::optional<EngineHarness> harness;
};

TEST(Eagle, OfAnExactHeadEveryTokenIsAccepted) {
  Rig rig;
  const SequenceId id = rig.harness->Add(MakeRequest(SomeTokens(30, 1), 61));
  rig.harness->Run();
  rig.harness->ExpectOracle(id);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_EQ(rig.harness->accepted, 48u);  // of the 60 after the first: 12 steps of 4 and 1
  EXPECT_EQ(rig.head->longest_context, 30 + 60 - 2);
  EXPECT_EQ(rig.proposer->sequences(), 0u);
  EXPECT_EQ(rig.proposer->free_blocks(), 64);
}

TEST(Eagle, ALongPromptIsTakenUpAsItIsComputed) {
  Rig rig({.max_prefill_chunk = 23});
  rig.harness->Add(MakeRequest(SomeTokens(420, 2), 30));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_LE(rig.head->longest_step, 50);
  EXPECT_EQ(rig.head->shortest_context, 420);  // the first draft reads all of it
  EXPECT_GT(rig.harness->accepted, 20u);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
}

TEST(Eagle, LongDraftsLeaveMoreThanWaitsForTheNextOne) {
  Rig rig({.num_tokens = 24});
  rig.harness->Add(MakeRequest(SomeTokens(30, 3), 101));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_EQ(rig.harness->accepted, 96u);  // four steps of 24 and 1
}

TEST(Eagle, WithoutKeptFeaturesItBeginsBehindACachedPrefix) {
  Rig rig({.feature_cache_bytes = 0});
  rig.harness->Add(MakeRequest(SomeTokens(150, 4), 4, 1));
  rig.harness->Run();
  const uint64_t before = rig.harness->accepted;
  rig.head->shortest_context = -1;
  rig.harness->Add(MakeRequest(SomeTokens(150, 4), 31, 2));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_LT(rig.head->shortest_context, 10);  // prefix hit of 144 of 150 tokens
  EXPECT_EQ(rig.harness->accepted - before, 24u);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
}

// The second time the prompt is a prefix hit; drafts must be the same as without it.
TEST(Eagle, BehindACachedPrefixItDraftsAsBehindAComputedOne) {
  for (const int32_t window : {24, 64, Proposer::kWholePrompt}) {
    SCOPED_TRACE(window);
    std::vector<std::vector<std::pair<uint32_t, int32_t>>> draws;
    for (const bool cached : {false, true}) {
      Rig rig({.feature_window = window});
      if (cached) rig.harness->Add(MakeRequest(SomeTokens(150, 4), 4, 1));
      rig.harness->Run();
      rig.head->draws.clear();
      const SequenceId id = rig.harness->Add(MakeRequest(SomeTokens(150, 4), 31, 2));
      rig.harness->Run();
      EXPECT_EQ(rig.harness->engine.Times(id).cached_tokens, cached ? 144 : 0);
      rig.harness->ExpectAllOracle();
      EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
      draws.push_back(rig.head->draws);
    }
    EXPECT_EQ(draws[0], draws[1]);
  }
}

// Features stay on a device: those of a prompt's window are fetched with the step that computes
// them, and uploaded for a later prompt with the same prefix.
TEST(Eagle, OnADeviceItDraftsBehindACachedPrefixAsBehindAComputedOne) {
  for (const int32_t window : {24, 64}) {
    for (const int32_t chunk : {64, 23}) {
      SCOPED_TRACE(fmt::format("window {}, chunks of {}", window, chunk));
      std::vector<std::vector<std::pair<uint32_t, int32_t>>> draws;
      for (const bool cached : {false, true}) {
        Rig rig({.max_prefill_chunk = chunk, .feature_window = window, .most_kept = 64});
        if (cached) rig.harness->Add(MakeRequest(SomeTokens(150, 4), 4, 1));
        rig.harness->Run();
        rig.head->draws.clear();
        const SequenceId id = rig.harness->Add(MakeRequest(SomeTokens(150, 4), 31, 2));
        rig.harness->Run();
        EXPECT_EQ(rig.harness->engine.Times(id).cached_tokens, cached ? 144 : 0);
        rig.harness->ExpectAllOracle();
        EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
        draws.push_back(rig.head->draws);
      }
      EXPECT_EQ(draws[0], draws[1]);
    }
  }
}

TEST(Eagle, OnADeviceStepsOfDecodingFetchNoFeatures) {
  Rig rig({.feature_window = 24, .most_kept = 64});
  rig.harness->Add(MakeRequest(SomeTokens(150, 4), 61, 1));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_EQ(rig.harness->executor.features_kept(), 24u);
}

TEST(Eagle, WithoutACacheForThemNoFeaturesAreFetched) {
  Rig rig({.feature_window = 24, .feature_cache_bytes = 0, .most_kept = 64});
  rig.harness->Add(MakeRequest(SomeTokens(150, 4), 31, 1));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->executor.features_kept(), 0u);
}

// A step copies at most ten feature rows to the host: those nearest to the prompt's end.
TEST(Eagle, WhatAStepCannotFetchIsAbsent) {
  Rig rig({.feature_window = 64, .most_kept = 10});
  rig.harness->Add(MakeRequest(SomeTokens(150, 4), 4, 1));
  rig.harness->Run();
  rig.head->shortest_context = -1;
  std::vector<TokenId> longer = SomeTokens(150, 4);
  for (const TokenId t : SomeTokens(10, 5)) longer.push_back(t);
  const SequenceId id = rig.harness->Add(MakeRequest(longer, 31, 2));
  rig.harness->Run();
  EXPECT_EQ(rig.harness->engine.Times(id).cached_tokens, 144);
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.head->shortest_context, 4 + 16);  // 140 to 143 were fetched, the others computed
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
}

// There are buffers for some of the sequences that start together; the others begin after the
// prefix hit.
TEST(Eagle, WhatFindsNoPlaceOnTheWayToTheDeviceIsAbsent) {
  for (const int32_t landings : {0, 1, 4}) {
    SCOPED_TRACE(landings);
    Rig rig({.target_blocks = 128, .feature_window = 64, .most_kept = 64, .landings = landings});
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      rig.harness->Add(MakeRequest(SomeTokens(90, seed), 2, seed));
      rig.harness->Run();
    }
    rig.head->draws.clear();
    for (uint64_t seed = 1; seed <= 4; ++seed)
      rig.harness->Add(MakeRequest(SomeTokens(90, seed), 12, seed));
    rig.harness->Run();
    rig.harness->ExpectAllOracle();
    EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
    const auto whole = std::count(rig.head->draws.begin(), rig.head->draws.end(),
                                  std::pair<uint32_t, int32_t>{91, 64});
    EXPECT_EQ(whole, landings);
  }
}

// The drawn tokens are part of the next turn's prompt.
TEST(Eagle, TheNextTurnOfAChatHasTheFeaturesOfTheLastAnswer) {
  Rig rig({.feature_window = 64});
  const SequenceId first = rig.harness->Add(MakeRequest(SomeTokens(40, 4), 60, 1));
  rig.harness->Run();
  const std::vector<TokenId>& answer = rig.harness->outcomes[first].drawn;
  std::vector<TokenId> next = SomeTokens(40, 4);
  next.insert(next.end(), answer.begin(), answer.end());
  for (const TokenId t : SomeTokens(12, 5)) next.push_back(t);
  rig.head->shortest_context = -1;
  const SequenceId id = rig.harness->Add(MakeRequest(next, 20, 2));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->engine.Times(id).cached_tokens, 96);
  EXPECT_EQ(rig.head->shortest_context, 64);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
}

TEST(Eagle, WhatIsPreemptedIsNotTakenUpTwice) {
  Rig rig({.target_blocks = 10});
  for (uint64_t seed = 1; seed <= 8; ++seed)
    rig.harness->Add(MakeRequest(SomeTokens(30, seed), 60, seed));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_GT(rig.harness->engine.Preemptions(), 0u);
  EXPECT_EQ(rig.head->shortest_context, 30);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_GT(rig.harness->accepted, 200u);
}

TEST(Eagle, AFullPoolTakesFromWhoWasNotAskedForLongest) {
  Rig rig({.target_blocks = 128, .head_blocks = 6});
  for (uint64_t seed = 1; seed <= 12; ++seed)
    rig.harness->Add(MakeRequest(SomeTokens(40, seed), 30, seed));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_GT(rig.harness->accepted, 30u);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
  EXPECT_EQ(rig.proposer->free_blocks(), 6);
}

TEST(Eagle, BeyondItsContextItBeginsAgain) {
  Rig rig({.head_context = 48});
  rig.harness->Add(MakeRequest(SomeTokens(40, 5), 120));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.head->longest_context, 48);
  EXPECT_GT(rig.harness->accepted, 50u);
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
}

TEST(Eagle, ThatFailsIsSwitchedOffAndTheRequestsGoOn) {
  Rig rig;
  for (uint64_t seed = 1; seed <= 3; ++seed)
    rig.harness->Add(MakeRequest(SomeTokens(20, seed), 40, seed));
  for (int i = 0; i < 5; ++i) rig.harness->Step();
  rig.head->fail = true;
  rig.harness->Add(MakeRequest(SomeTokens(40, 9), 40, 9));
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.harness->engine.speculator()->stats().failed, 4u);
  EXPECT_EQ(rig.proposer->sequences(), 0u);
  EXPECT_EQ(rig.proposer->free_blocks(), 64);
}

TEST(Eagle, OfATakeoverItSeesWhatWasEmitted) {
  Rig rig;
  SequenceRequest request = MakeRequest(SomeTokens(30, 1), 61);
  for (const TokenId token : ExpectedTokens(Model(64), request.tokens, 20, 1))
    request.tokens.push_back(token);
  const SequenceId id = rig.harness->Add(request);
  rig.harness->Run();
  rig.harness->ExpectOracle(id);
  EXPECT_EQ(rig.head->shortest_context, 50);
  EXPECT_EQ(rig.harness->accepted, 32u);  // of the 40 after the first: 8 steps of 4
  EXPECT_EQ(rig.harness->accepted, rig.harness->drafted);
}

TEST(Eagle, WhoWantsNoDraftsGivesNoFeatures) {
  Rig rig;
  SequenceRequest request = MakeRequest(SomeTokens(30, 1), 20);
  request.max_draft_tokens = 0;
  rig.harness->Add(request);
  rig.harness->Run();
  rig.harness->ExpectAllOracle();
  EXPECT_EQ(rig.head->rows_computed, 0u);
}

TEST(Eagle, PenaltiesMasksAndStopTokensAreTheTargets) {
  Rig rig;
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

// Sequences without an engine: the test calls the proposer.
struct FedSequence {
  FedSequence(uint64_t id, int32_t prompt, uint64_t seed) {
    request = MakeRequest(SomeTokens(prompt, seed), 200);
    all = ExpectedTokens(Model(64), request.tokens, 150, 1);
    request.tokens.reserve(400);
    context.sequence = SequenceId(id);
    context.prompt_tokens = prompt;
    context.limit = 3;
    context.sampling = &request.sampling;
    context.request = &request;
  }
  void Draw(size_t count) {
    for (size_t i = 0; i < count; ++i) request.tokens.push_back(all[drawn()]);
  }
  size_t drawn() const {
    return request.tokens.size() - static_cast<size_t>(request.prompt_tokens);
  }
  // Features of positions [from, size - 1).
  ComputedRows Rows(int32_t from) {
    context.tokens = request.tokens;
    features.clear();
    const std::vector<uint64_t> states = ExpectedStates(Model(64), request.tokens);
    for (size_t i = static_cast<size_t>(from); i + 1 < states.size(); ++i) {
      for (const float f : FeaturesOf(states[i])) features.push_back(f);
    }
    return {context, from, std::as_bytes(std::span(features))};
  }
  std::vector<TokenId> Propose(EagleProposer& proposer) {
    context.tokens = request.tokens;
    TokenDraft draft;
    EXPECT_TRUE(proposer.Propose({&context, 1}, {&draft, 1}).has_value());
    return draft.tokens;
  }
  std::vector<TokenId> Expected() const {
    const auto from = all.begin() + static_cast<ptrdiff_t>(drawn());
    return {from, from + 3};
  }

  SequenceRequest request;
  std::vector<TokenId> all;
  DraftContext context;
  std::vector<float> features;
};

std::vector<TokenId> FeedAndPropose(EagleProposer& proposer, FedSequence& fed, int32_t from) {
  const ComputedRows rows = fed.Rows(from);
  EXPECT_TRUE(proposer.Computed({&rows, 1}).has_value());
  return fed.Propose(proposer);
}

// A state kept over steps drafts the same as a new one that gets all features.
TEST(Eagle, AKeptStateDraftsWhatAFreshOneDoes) {
  Rig kept;
  FedSequence fed(5, 30, 3);
  int32_t known = 0;
  for (const size_t count : {1, 0, 2, 3, 4, 5, 6, 17, 40}) {
    fed.Draw(count);
    const std::vector<TokenId> drafted =
        FeedAndPropose(*kept.proposer, fed, std::max(0, known - 2));
    known = static_cast<int32_t>(fed.request.tokens.size()) - 1;
    EXPECT_EQ(drafted, fed.Expected()) << count;
    Rig fresh;
    EXPECT_EQ(FeedAndPropose(*fresh.proposer, fed, 0), drafted) << count;
  }
}

TEST(Eagle, BehindAGapItBeginsAgain) {
  Rig rig;
  FedSequence fed(5, 60, 4);
  EXPECT_EQ(FeedAndPropose(*rig.proposer, fed, 0), fed.Expected());
  fed.Draw(20);
  EXPECT_EQ(FeedAndPropose(*rig.proposer, fed, 70), fed.Expected());
  EXPECT_EQ(rig.head->shortest_context, 9);
  fed.Draw(30);
  EXPECT_TRUE(fed.Propose(*rig.proposer).empty());  // it lacks features of the last 30
  EXPECT_EQ(FeedAndPropose(*rig.proposer, fed, 79), fed.Expected());
}

// Two prompts in one step with room for one: neither gets the other's blocks while it computes.
TEST(Eagle, PromptsOfOneStepTakeNoBlocksFromEachOther) {
  Rig rig({.head_blocks = 3});
  FedSequence one(1, 40, 1), two(2, 40, 2), three(3, 40, 3);
  for (int turn = 0; turn < 4; ++turn) {
    const ComputedRows rows[] = {one.Rows(turn == 0 ? 0 : 39), two.Rows(0), three.Rows(0)};
    ASSERT_TRUE(rig.proposer->Computed(rows).has_value());
    int drafted = 0;
    for (FedSequence* each : {&one, &two, &three}) {
      const std::vector<TokenId> draft = each->Propose(*rig.proposer);
      if (draft.empty()) continue;
      EXPECT_EQ(draft, each->Expected());
      ++drafted;
    }
    EXPECT_GT(drafted, 0);
  }
}

}  // namespace
}  // namespace aisp
