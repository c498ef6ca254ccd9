// Outputs of prompt rows besides KV and draws: embeddings, logprobs of the prompt's tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/small_engine.h"

namespace aisp {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

SequenceRequest Pooled(std::vector<TokenId> tokens, Pooling pooling) {
  SequenceRequest request = MakeRequest(std::move(tokens));
  request.pooling = pooling;
  return request;
}

SequenceRequest Scored(std::vector<TokenId> tokens, int32_t max_new_tokens = 4) {
  SequenceRequest request = MakeRequest(std::move(tokens), max_new_tokens);
  request.prompt_logprobs = 0;
  return request;
}

class EngineOutputs : public testing::TestWithParam<int> {
 protected:
  ProvenanceOptions M(int32_t blocks = 64) const { return SmallModel(GetParam(), blocks); }

  static void ExpectEmbedding(EngineHarness& h, const ProvenanceOptions& model, SequenceId id) {
    const Outcome& o = h.outcomes[id];
    EXPECT_TRUE(o.ended);
    EXPECT_EQ(o.finish, FinishReason::kStop) << o.error.message;
    EXPECT_THAT(o.drawn, IsEmpty());
    EXPECT_EQ(o.embedding, ExpectedEmbedding(model, o.request));
  }
  static void ExpectScores(EngineHarness& h, const ProvenanceOptions& model, SequenceId id) {
    const Outcome& o = h.outcomes[id];
    EXPECT_EQ(o.prompt_logprobs, ExpectedPromptLogprobs(model, o.request));
  }
};
INSTANTIATE_TEST_SUITE_P(Depth, EngineOutputs, testing::Values(1, 2));

TEST_P(EngineOutputs, AnEmbeddingIsTheSameHoweverThePromptIsCut) {
  for (const int32_t chunk : {1, 7, 16, 200}) {
    for (const Pooling pooling : {Pooling::kMean, Pooling::kLast, Pooling::kFirst}) {
      SCOPED_TRACE(chunk);
      EngineHarness h(M(), Budget(chunk, chunk));
      const SequenceId id = h.Add(Pooled(SomeTokens(50, 1), pooling));
      const SequenceId one = h.Add(Pooled(SomeTokens(1, 2), pooling));
      h.Run();
      ExpectEmbedding(h, M(), id);
      ExpectEmbedding(h, M(), one);
      h.ExpectIdle();
    }
  }
}

TEST_P(EngineOutputs, ACachedPrefixIsComputedAgainWhereEveryPositionIsWanted) {
  EngineHarness h(M());
  const std::vector<TokenId> tokens = SomeTokens(50, 1);
  h.Add(MakeRequest(tokens, 1));
  h.Run();
  const uint64_t before = h.executor.rows_computed();
  const SequenceId mean = h.Add(Pooled(tokens, Pooling::kMean));
  h.Run();
  EXPECT_EQ(h.executor.rows_computed() - before, 50u);
  EXPECT_EQ(h.engine.Times(mean).cached_tokens, 0);
  const SequenceId last = h.Add(Pooled(tokens, Pooling::kLast));
  h.Run();
  EXPECT_EQ(h.executor.rows_computed() - before, 52u) << "the last one is in no whole block";
  EXPECT_EQ(h.engine.Times(last).cached_tokens, 48);
  const SequenceId scored = h.Add(Scored(tokens));
  h.Run();
  ExpectEmbedding(h, M(), mean);
  ExpectEmbedding(h, M(), last);
  ExpectScores(h, M(), scored);
  h.ExpectOracle(scored);
  h.ExpectIdle();
}

TEST_P(EngineOutputs, WhatAnEmbeddingComputedIsFoundByOthers) {
  EngineHarness h(M());
  const std::vector<TokenId> tokens = SomeTokens(50, 1);
  h.Add(Pooled(tokens, Pooling::kMean));
  h.Run();
  const SequenceId id = h.Add(MakeRequest(tokens));
  h.Run();
  EXPECT_EQ(h.engine.Times(id).cached_tokens, 48);
  h.ExpectOracle(id);
}

TEST_P(EngineOutputs, PromptLogprobsComeOncePerPositionHoweverThePromptIsCut) {
  for (const int32_t chunk : {1, 7, 16, 200}) {
    SCOPED_TRACE(chunk);
    EngineHarness h(M(), Budget(chunk, chunk));
    const SequenceId some = h.Add(Scored(SomeTokens(50, 1)));
    const SequenceId none = h.Add(Scored(SomeTokens(70, 2), /*max_new_tokens=*/0));
    const SequenceId one = h.Add(Scored(SomeTokens(1, 3)));
    const SequenceId plain = h.Add(MakeRequest(SomeTokens(40, 4)));
    h.Run();
    ExpectScores(h, M(), some);
    ExpectScores(h, M(), none);
    ExpectScores(h, M(), one);
    for (const SequenceId id : {some, one, plain}) h.ExpectOracle(id);
    EXPECT_THAT(h.outcomes[none].drawn, IsEmpty());
    EXPECT_EQ(h.outcomes[none].finish, FinishReason::kLength);
    h.ExpectIdle();
  }
}

TEST_P(EngineOutputs, ATakeoverGoesOnWithTheFirstPositionThatIsNotKnown) {
  EngineHarness h(M());
  SequenceRequest request = Scored(SomeTokens(50, 1));
  const std::vector<float> all = ExpectedPromptLogprobs(M(), request);
  request.prompt_logprobs_from = 33;
  auto id = h.engine.Add(request);
  ASSERT_TRUE(id.has_value());
  std::vector<float> rest;
  while (h.engine.InFlight() || h.engine.CanLaunch()) {
    while (h.engine.CanLaunch()) ASSERT_TRUE(h.engine.Launch().has_value());
    for (const TokenOutput& output : h.engine.Collect().tokens) {
      if (!output.prompt_logprobs.empty()) {
        EXPECT_EQ(output.prompt_logprobs_from, 33 + static_cast<int32_t>(rest.size()));
      }
      for (const TokenLogprob& each : output.prompt_logprobs) rest.push_back(each.logprob);
    }
  }
  EXPECT_EQ(rest, std::vector<float>(all.begin() + 32, all.end()));
}

TEST_P(EngineOutputs, ManyAtOnceInASmallPoolAreAllRight) {
  SplitMix64 random(7);
  ProvenanceOptions model = M(24);
  EngineOptions options = Budget(48, 32);
  options.limits.max_sequences = 6;
  EngineHarness h(model, options);
  const std::vector<TokenId> system = SomeTokens(40, 9);
  std::vector<SequenceId> pooled, scored, plain;
  for (int i = 0; i < 60; ++i) {
    std::vector<TokenId> tokens(system.begin(), system.begin() + random.Below(41));
    const auto tail = RandomTokens(random, 1 + static_cast<int32_t>(random.Below(60)));
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    const auto kind = random.Below(5);
    if (kind == 0) {
      plain.push_back(h.Add(MakeRequest(tokens, 30, 1 + random.Below(99))));
    } else if (kind == 1) {
      scored.push_back(h.Add(Scored(tokens, static_cast<int32_t>(random.Below(40)))));
    } else {
      pooled.push_back(h.Add(Pooled(tokens, static_cast<Pooling>(kind - 1))));
    }
    if (random.Below(2) == 0) h.Step();
  }
  h.Run();
  for (const SequenceId id : pooled) ExpectEmbedding(h, model, id);
  for (const SequenceId id : plain) h.ExpectOracle(id);
  for (const SequenceId id : scored) {
    ExpectScores(h, model, id);
    if (h.outcomes[id].request.max_new_tokens > 0) h.ExpectOracle(id);
  }
  EXPECT_GT(h.engine.Preemptions(), 0u) << "the pool was meant to be too small";
  h.ExpectIdle();
}

TEST_P(EngineOutputs, ADeviceThatCannotRefusesByName) {
  ProvenanceOptions model = M();
  model.max_scored_rows = 0;
  EngineHarness h(model);
  const auto refused = h.engine.Add(Scored(SomeTokens(5, 1)));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kUnimplemented);
  EXPECT_THAT(refused.error().message, HasSubstr("logprobs of the prompt"));
}

TEST_P(EngineOutputs, EveryRowIsWantedOfNobodyWhoseKvAnotherComputes) {
  EngineHarness h(M());
  SequenceRequest mean = Pooled(SomeTokens(40, 1), Pooling::kMean);
  mean.kv_source = KvSource::kRemote;
  EXPECT_EQ(h.engine.Add(mean).error().code, Code::kInvalidArgument);
  SequenceRequest last = Pooled(SomeTokens(40, 1), Pooling::kLast);
  last.kv_source = KvSource::kRemote;
  EXPECT_TRUE(h.engine.Add(last).has_value());
}

TEST_P(EngineOutputs, APromptAsLongAsTheContextCanBeEmbedded) {
  ProvenanceOptions model = M();
  model.max_context = 64;
  EngineHarness h(model);
  const SequenceId id = h.Add(Pooled(SomeTokens(64, 1), Pooling::kMean));
  h.Run();
  ExpectEmbedding(h, model, id);
  EXPECT_FALSE(h.engine.Add(Pooled(SomeTokens(65, 1), Pooling::kMean)).has_value());
}

}  // namespace
}  // namespace aisp
