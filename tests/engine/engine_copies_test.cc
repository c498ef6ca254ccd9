// Prefix hits that end inside a cached block: copy-on-write into a block of the sequence.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/engine/small_engine.h"

namespace aisp {
namespace {

class EngineCopies : public testing::TestWithParam<int> {
 protected:
  static ProvenanceOptions M(int32_t blocks = 64, int32_t block_tokens = 16) {
    ProvenanceOptions model = SmallModel(GetParam(), blocks);
    model.block_tokens = block_tokens;
    return model;
  }
};
INSTANTIATE_TEST_SUITE_P(Depth, EngineCopies, testing::Values(1, 2));

std::vector<TokenId> Join(std::span<const TokenId> a, std::span<const TokenId> b) {
  std::vector<TokenId> out(a.begin(), a.end());
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

TEST_P(EngineCopies, OfAPromptThatIsCachedAsAWholeOneTokenIsComputed) {
  EngineHarness h(M());
  const std::vector<TokenId> prompt = SomeTokens(64, 1);
  h.Add(MakeRequest(prompt, 1));
  h.Run();
  const uint64_t computed = h.executor.rows_computed();
  const SequenceId second = h.Add(MakeRequest(prompt, 1, /*seed=*/2));
  h.Run();
  EXPECT_EQ(h.executor.rows_computed(), computed + 1);
  EXPECT_EQ(h.executor.blocks_copied(), 1u);
  EXPECT_EQ(h.engine.Times(second).cached_tokens, 63);
  EXPECT_EQ(h.engine.Times(second).chunks.at(0).tokens, 1);
  EXPECT_EQ(h.engine.blocks().Stats().hits_tokens, 63u);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineCopies, RandomSharedLengthsBringTheSameTokensAndLeaveTheSharedBlocks) {
  for (const int32_t block_tokens : {16, 64, 128}) {
    SplitMix64 random(static_cast<uint64_t>(block_tokens));
    EngineHarness h(M(/*blocks=*/200, block_tokens));
    const std::vector<TokenId> base = SomeTokens(2 * 128 + 50, 3);
    h.Add(MakeRequest(base, 4));
    h.Run();
    for (int i = 0; i < 60; ++i) {
      const auto shared = static_cast<size_t>(random.Below(base.size() + 1));
      const auto more = static_cast<int32_t>(1 + random.Below(40));
      h.Add(MakeRequest(Join(std::span(base).first(shared), RandomTokens(random, more)), 3,
                        random.Below(1000)));
      if (random.Below(3) == 0) h.Run();
    }
    h.Run();
    EXPECT_GT(h.executor.blocks_copied(), 10u) << block_tokens;
    h.Add(MakeRequest(base, 4, /*seed=*/9));
    h.Run();
    h.ExpectAllOracle();
    h.ExpectIdle();
  }
}

// A sequence that gets blocks between the launch of a step and its end may overwrite them.
TEST_P(EngineCopies, TheSourceOfACopyIsGivenToNobodyBeforeTheStepIsCollected) {
  for (const bool cancel : {false, true}) {
    EngineHarness h(M(/*blocks=*/12));
    const std::vector<TokenId> prompt = SomeTokens(64, 1);
    h.Add(MakeRequest(prompt, 1));
    h.Run();
    const SequenceId second = h.Add(MakeRequest(prompt, 1, /*seed=*/2));
    ASSERT_TRUE(h.engine.Launch().has_value());
    if (cancel) h.engine.Cancel(second);
    BlockManager& blocks = h.engine.blocks();
    {
      Result<Reservation> others = blocks.Reserve(blocks.Available());
      ASSERT_TRUE(others.has_value());
      EXPECT_EQ(others->blocks().size(), 7u) << "three matched, the source and the copy are not";
      const KvLayout& layout = blocks.layout();
      for (const BlockId block : others->blocks()) {
        for (int32_t layer = 0; layer < layout.num_layers; ++layer)
          std::memset(h.executor.pool_base() + layout.Offset(layer, block), 0x5a,
                      layout.LayerBlockBytes());
      }
    }
    h.Run();
    if (!cancel) h.ExpectOracle(second);
    h.ExpectIdle();
  }
}

TEST_P(EngineCopies, WithoutRoomForTheSourceItIsComputed) {
  EngineHarness h(M(/*blocks=*/4));
  const std::vector<TokenId> prompt = SomeTokens(64, 1);
  h.Add(MakeRequest(prompt, 1));
  h.Run();
  const SequenceId second = h.Add(MakeRequest(prompt, 1, /*seed=*/2));
  h.Run();
  EXPECT_EQ(h.engine.Times(second).cached_tokens, 48);
  EXPECT_EQ(h.executor.blocks_copied(), 0u);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineCopies, AfterAStepThatFailedTheNextOneCopies) {
  EngineHarness h(M());
  const std::vector<TokenId> prompt = SomeTokens(64, 1);
  h.Add(MakeRequest(prompt, 1));
  h.Run();
  h.Add(MakeRequest(prompt, 3, /*seed=*/3));
  h.Add(MakeRequest(SomeTokens(30, 7), 3, /*seed=*/4));
  h.executor.fail_next_launch = Error{Code::kResourceExhausted, "no workspace"};
  h.Run();
  EXPECT_EQ(h.executor.blocks_copied(), 1u);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineCopies, WhatGaveNoNumbersIsForgottenWithTheSource) {
  EngineHarness h(M());
  const std::vector<TokenId> prompt = SomeTokens(16, 1);
  h.Add(MakeRequest(prompt, 1));
  h.Run();
  h.executor.row_fault = [](const SampleRow& row) -> Status {
    return row.params->seed == 666 ? Internal("the logits are not finite") : Status();
  };
  const SequenceId bad = h.Add(MakeRequest(prompt, 1, /*seed=*/666));
  h.Run();
  EXPECT_EQ(h.outcomes[bad].finish, FinishReason::kError);
  EXPECT_EQ(h.executor.blocks_copied(), 1u);
  h.outcomes.erase(bad);
  const SequenceId next = h.Add(MakeRequest(prompt, 1));
  h.Run();
  EXPECT_EQ(h.engine.Times(next).cached_tokens, 0);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineCopies, LogprobsOfAPromptNeedAllItsRows) {
  EngineHarness h(M());
  const std::vector<TokenId> prompt = SomeTokens(40, 1);
  h.Add(MakeRequest(prompt, 1));
  h.Run();
  SequenceRequest request = MakeRequest(prompt, 1);
  request.prompt_logprobs = 1;
  const SequenceId scored = h.Add(request);
  h.Run();
  EXPECT_EQ(h.engine.Times(scored).cached_tokens, 0);
  EXPECT_EQ(h.outcomes[scored].prompt_logprobs, ExpectedPromptLogprobs(M(), request));
  h.ExpectAllOracle();
}

TEST_P(EngineCopies, AnExecutorWithoutCopiesHasWholeBlocks) {
  ProvenanceOptions model = M();
  model.copies_blocks = false;
  EngineHarness h(model);
  const std::vector<TokenId> prompt = SomeTokens(64, 1);
  h.Add(MakeRequest(prompt, 1));
  h.Run();
  const SequenceId second = h.Add(MakeRequest(prompt, 1));
  h.Run();
  EXPECT_EQ(h.engine.Times(second).cached_tokens, 48);
  h.ExpectAllOracle();
}

TEST_P(EngineCopies, AStepHasRoomForManyPromptsThatAreCached) {
  EngineHarness h(M(), Budget(32, 32));
  std::vector<std::vector<TokenId>> prompts;
  for (uint64_t i = 0; i < 8; ++i) prompts.push_back(SomeTokens(32, i));
  for (const auto& prompt : prompts) h.Add(MakeRequest(prompt, 1));
  h.Run();
  for (const auto& prompt : prompts) h.Add(MakeRequest(prompt, 1, /*seed=*/2));
  const uint64_t steps = h.executor.steps();
  h.Run();
  EXPECT_EQ(h.executor.steps(), steps + 1);
  h.ExpectAllOracle();
}

// What a reader is told before the first step is in the pool; the copied tokens come with that
// step.
class CopyReader : public LayerSink {
 public:
  void OnLayer(int32_t layer, std::span<const LayerSlice> slices) override {
    for (const LayerSlice& s : slices) {
      if (layer == 0) seen.emplace_back(s.token_begin, s.token_end);
    }
  }
  std::vector<std::pair<int32_t, int32_t>> seen;
};

TEST_P(EngineCopies, AReaderIsToldOfCopiedTokensWithTheStepThatCopiesThem) {
  CopyReader reader;
  EngineHarness h(M(), {}, &reader);
  const std::vector<TokenId> prompt = SomeTokens(64, 1);
  h.Add(MakeRequest(prompt, 1));
  h.Run();
  for (const bool draws : {true, false}) {
    SequenceRequest request = MakeRequest(Join(std::span(prompt).first(60), SomeTokens(4, 2)));
    request.kv_source = KvSource::kPrefillOnly;
    request.draws_first = draws;
    const SequenceId id = h.Add(request);
    h.engine.OpenGate(id);
    EXPECT_EQ(h.engine.ComputedTokens(id), 48);
    reader.seen.clear();
    h.Run();
    const int32_t end = draws ? 64 : 63;
    EXPECT_EQ(reader.seen, (std::vector<std::pair<int32_t, int32_t>>{{48, end}}));
    EXPECT_EQ(h.engine.Times(id).cached_tokens, 60);
    EXPECT_TRUE(h.executor.Holds(request.tokens, h.engine.BlocksOf(id), 0, end));
    h.engine.Release(id);
    h.outcomes.erase(id);
    h.engine.blocks().ClearCache();
    h.Add(MakeRequest(prompt, 1));
    h.Run();
  }
  EXPECT_EQ(h.executor.blocks_copied(), 2u);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

}  // namespace
}  // namespace aisp
