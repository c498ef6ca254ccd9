#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/small_engine.h"

namespace aisp {
namespace {

using testing::HasSubstr;
using testing::SizeIs;
// Everything below holds at both depths.
class EngineAtDepth : public testing::TestWithParam<int> {
 protected:
  ProvenanceOptions M(int32_t blocks = 64) const { return SmallModel(GetParam(), blocks); }
};
INSTANTIATE_TEST_SUITE_P(Depth, EngineAtDepth, testing::Values(1, 2));

TEST_P(EngineAtDepth, OneSequenceAloneBringsTheTokensOfTheOracle) {
  EngineHarness h(M());
  h.Add(MakeRequest(SomeTokens(37, 1), 40));
  h.Run();
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, APromptOfOneTokenWorks) {
  EngineHarness h(M());
  h.Add(MakeRequest({7}, 20));
  h.Run();
  h.ExpectAllOracle();
}

TEST_P(EngineAtDepth, BatchedSequencesBringTheSameTokensAsAlone) {
  EngineHarness h(M());
  for (int32_t i = 0; i < 12; ++i) h.Add(MakeRequest(SomeTokens(1 + 5 * i, 100 + i), 3 + i, i));
  h.Run();
  h.ExpectAllOracle();
  h.ExpectIdle();
}

// The stream can wait for 6 ms of prefill, and the prompt needs 12.
TEST_P(EngineAtDepth, APromptWithTimeWaitsForAStreamThatWouldMissItsTpot) {
  const auto drawn_before = [&](double first_token_ms) {
    EngineHarness h(M());
    SequenceRequest stream = MakeRequest(SomeTokens(8, 1), 40);
    stream.limits = {0, 1.2, 40, 0};
    stream.step_cost = StepCost{{1, 0, 0}, {1, 0.2, 0, 0, 0}};
    const SequenceId a = h.Add(stream);
    while (h.outcomes[a].drawn.size() < 5 && h.Step()) {
    }
    SequenceRequest prompt = MakeRequest(SomeTokens(60, 2), 4);
    prompt.limits = {first_token_ms, 1.2, 4, 60};
    const SequenceId b = h.Add(prompt);
    while (h.outcomes[b].drawn.empty() && h.Step()) {
    }
    const size_t drawn = h.outcomes[a].drawn.size();
    h.Run();
    h.ExpectAllOracle();
    return drawn;
  };
  EXPECT_GE(drawn_before(1000), 35u);
  EXPECT_LE(drawn_before(30), 8u) << "it would be late, too";
}

TEST_P(EngineAtDepth, EveryChunkSizeBringsTheSameTokens) {
  for (int32_t budget = 1; budget <= 41; ++budget) {
    SCOPED_TRACE(budget);
    EngineHarness h(M(), Budget(budget, budget));
    h.Add(MakeRequest(SomeTokens(40, 3), 5));
    h.Add(MakeRequest(SomeTokens(23, 4), 5));
    h.Run();
    h.ExpectAllOracle();
    h.ExpectIdle();
  }
}

TEST_P(EngineAtDepth, EveryBlockSizeBringsTheSameTokens) {
  for (int32_t block_tokens : {16, 32, 64, 128}) {
    ProvenanceOptions model = M();
    model.block_tokens = block_tokens;
    EngineHarness h(model);
    h.Add(MakeRequest(SomeTokens(100, 3), 40));
    h.Run();
    h.ExpectAllOracle();
  }
}

TEST_P(EngineAtDepth, PrefixHitsOfEveryLengthBringTheSameTokens) {
  const std::vector<TokenId> base = SomeTokens(80, 9);
  for (int32_t shared = 0; shared <= 80; ++shared) {
    SCOPED_TRACE(shared);
    EngineHarness h(M());
    h.Add(MakeRequest(base, 20));
    h.Run();
    std::vector<TokenId> prompt(base.begin(), base.begin() + shared);
    for (TokenId t : SomeTokens(80 - shared, 10)) prompt.push_back(t);
    const SequenceId second = h.Add(MakeRequest(prompt, 20));
    h.Run();
    h.ExpectAllOracle();
    // Whole blocks, and a copy of a partial one from a quarter on.
    const int32_t most = std::min(shared, 79);
    const int32_t whole = most / 16 * 16;
    EXPECT_EQ(h.engine.Times(second).cached_tokens, most - whole >= 4 ? most : whole);
    h.ExpectIdle();
  }
}

TEST_P(EngineAtDepth, AnAnswerIsCachedForTheNextTurn) {
  EngineHarness h(M());
  const SequenceId first = h.Add(MakeRequest(SomeTokens(20, 9), 45));
  h.Run();
  std::vector<TokenId> next = h.outcomes[first].request.tokens;
  for (TokenId t : h.outcomes[first].drawn) next.push_back(t);
  for (TokenId t : SomeTokens(5, 11)) next.push_back(t);
  const SequenceId second = h.Add(MakeRequest(next, 4));
  h.Run();
  // 20 + 45 tokens; the last was never computed, so 64 are in whole blocks.
  EXPECT_EQ(h.engine.Times(second).cached_tokens, 64);
  h.ExpectAllOracle();
}

TEST_P(EngineAtDepth, ScopesDoNotShareAPrefix) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(64, 9), 4);
  h.Add(request);
  h.Run();
  request.cache_scope = "other tenant";
  const SequenceId second = h.Add(request);
  h.Run();
  EXPECT_EQ(h.engine.Times(second).cached_tokens, 0);
  h.ExpectAllOracle();
}

TEST_P(EngineAtDepth, WithoutPrefixCacheNothingIsKept) {
  EngineOptions options;
  options.enable_prefix_cache = false;
  EngineHarness h(M(), options);
  h.Add(MakeRequest(SomeTokens(64, 9), 4));
  h.Run();
  h.Add(MakeRequest(SomeTokens(64, 9), 4));
  h.Run();
  h.ExpectAllOracle();
  EXPECT_EQ(h.engine.blocks().Stats().cached, 0);
}

TEST_P(EngineAtDepth, ATinyPoolForcesPreemptionsAndChangesNoToken) {
  EngineHarness h(M(/*blocks=*/9));
  for (int32_t i = 0; i < 6; ++i) h.Add(MakeRequest(SomeTokens(20 + i, 50 + i), 60, i));
  h.Run();
  h.ExpectAllOracle();
  EXPECT_GT(h.engine.Preemptions(), 0u);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, PreemptionTakesTheNewestAndNeverTheOldest) {
  EngineOptions options;
  options.enable_prefix_cache = false;
  EngineHarness h(M(/*blocks=*/8), options);
  std::vector<SequenceId> ids;
  for (int32_t i = 0; i < 3; ++i) ids.push_back(h.Add(MakeRequest(SomeTokens(20, 50 + i), 50, i)));
  h.Run();
  EXPECT_EQ(h.engine.Times(ids[0]).preemptions, 0);
  EXPECT_GT(h.engine.Times(ids[2]).preemptions, 0);
  h.ExpectAllOracle();
}

TEST_P(EngineAtDepth, SharedPrefixesSurvivePreemption) {
  EngineHarness h(M(/*blocks=*/10));
  const std::vector<TokenId> shared = SomeTokens(48, 5);
  for (int32_t i = 0; i < 8; ++i) {
    std::vector<TokenId> prompt = shared;
    for (TokenId t : SomeTokens(7 + i, 60 + i)) prompt.push_back(t);
    h.Add(MakeRequest(prompt, 40, i));
  }
  h.Run();
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, MaxNewTokensEndsWithLength) {
  EngineHarness h(M());
  const SequenceId id = h.Add(MakeRequest(SomeTokens(5, 1), 3));
  h.Run();
  EXPECT_EQ(h.outcomes[id].finish, FinishReason::kLength);
  EXPECT_THAT(h.outcomes[id].drawn, SizeIs(3));
}

TEST_P(EngineAtDepth, NoRowIsComputedBeyondTheLastToken) {
  EngineHarness h(M());
  h.Add(MakeRequest(SomeTokens(10, 1), 6));
  h.Run();
  EXPECT_EQ(h.executor.rows_computed(), 10u + 5u);
}

TEST_P(EngineAtDepth, AStopTokenEndsWithStop) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(5, 1), 30);
  request.stop_token_ids = {ExpectedTokens(M(), request.tokens, 10, 1)[6]};
  const SequenceId id = h.Add(request);
  h.Add(MakeRequest(SomeTokens(8, 2), 30));
  h.Run();
  h.ExpectAllOracle();
  EXPECT_EQ(h.outcomes[id].finish, FinishReason::kStop);
  EXPECT_LE(h.outcomes[id].drawn.size(), 7u);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, StopTokensAreMaskedBeforeMinNewTokens) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(5, 1), 30);
  request.stop_token_ids = {ExpectedTokens(M(), request.tokens, 10, 1)[2]};
  request.min_new_tokens = 8;
  const SequenceId id = h.Add(request);
  h.Run();
  h.ExpectAllOracle();
  EXPECT_GE(h.outcomes[id].drawn.size(), 8u);
}

TEST_P(EngineAtDepth, TheContextLimitEndsWithLength) {
  ProvenanceOptions model = M();
  model.max_context = 40;
  EngineHarness h(model);
  const SequenceId id = h.Add(MakeRequest(SomeTokens(30, 1), 1000));
  h.Run();
  h.ExpectAllOracle();
  EXPECT_EQ(h.outcomes[id].finish, FinishReason::kLength);
  EXPECT_THAT(h.outcomes[id].drawn, SizeIs(10));
}

TEST_P(EngineAtDepth, PenaltiesSeeEveryTokenDrawnBefore) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(30, 1), 20);
  request.sampling.frequency_penalty = 0.5f;
  h.Add(request);
  h.Add(MakeRequest(SomeTokens(12, 2), 20));
  h.Run();
  h.ExpectAllOracle();
}

TEST_P(EngineAtDepth, ATakeoverGoesOnWhereTheOtherWorkerStopped) {
  const SequenceRequest whole = MakeRequest(SomeTokens(30, 1), 20);
  const ExpectedEnd expected = ExpectedOutput(M(), whole);
  for (size_t emitted : {1u, 7u, 19u, 20u}) {
    EngineHarness h(M());
    SequenceRequest rest = whole;
    rest.tokens.insert(rest.tokens.end(), expected.tokens.begin(),
                       expected.tokens.begin() + static_cast<long>(emitted));
    const SequenceId id = h.Add(rest);
    h.Run();
    EXPECT_EQ(h.outcomes[id].drawn,
              std::vector<TokenId>(expected.tokens.begin() + static_cast<long>(emitted),
                                   expected.tokens.end()));
    EXPECT_EQ(h.outcomes[id].finish, FinishReason::kLength);
  }
}

TEST_P(EngineAtDepth, LogprobsComeWithTheirToken) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(5, 1), 1);
  request.sampling.num_logprobs = 0;
  h.Add(request);
  while (h.engine.CanLaunch()) ASSERT_TRUE(h.engine.Launch());
  const CollectOutput out = h.engine.Collect();
  ASSERT_THAT(out.tokens, SizeIs(1));
  EXPECT_TRUE(out.tokens[0].logprob.has_value());
}

TEST_P(EngineAtDepth, CancelAtEveryStepGivesEveryBlockBack) {
  for (int cancel_at = 0; cancel_at < 24; ++cancel_at) {
    SCOPED_TRACE(cancel_at);
    EngineHarness h(M(), Budget(8, 8));
    const SequenceId victim = h.Add(MakeRequest(SomeTokens(37, 1), 12));
    const SequenceId other = h.Add(MakeRequest(SomeTokens(21, 2), 12));
    for (int i = 0; i < cancel_at; ++i) h.Step();
    const bool was_alive = h.engine.Alive(victim);
    if (h.engine.CanLaunch()) {
      ASSERT_TRUE(h.engine.Launch());  // the cancel arrives with steps in flight
    }
    h.engine.Cancel(victim);
    h.engine.blocks().CheckInvariants();
    EXPECT_FALSE(h.engine.Alive(victim));
    h.Run();
    EXPECT_TRUE(!was_alive || !h.outcomes[victim].ended) << "nothing follows a cancel";
    h.ExpectOraclePrefix(victim);
    h.ExpectOracle(other);
    h.ExpectIdle();
  }
}

TEST_P(EngineAtDepth, BlocksOfACancelledSequenceAreNotReusedWhileAStepReadsThem) {
  EngineHarness h(M(/*blocks=*/4), Budget(64, 64));
  const SequenceId first = h.Add(MakeRequest(SomeTokens(60, 1), 4));
  ASSERT_TRUE(h.engine.Launch());
  h.engine.Cancel(first);
  EXPECT_EQ(h.engine.blocks().Available(), 0);
  h.Add(MakeRequest(SomeTokens(60, 2), 4));
  h.Run();
  EXPECT_TRUE(h.outcomes[first].drawn.empty());
  h.outcomes.erase(first);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, ADeadlineEndsASequenceInEveryState) {
  EngineOptions options;
  options.limits.max_sequences = 1;
  EngineHarness h(M(), options);
  SequenceRequest request = MakeRequest(SomeTokens(20, 1), 1000);
  request.deadline = h.clock.Now() + std::chrono::milliseconds(10);
  const SequenceId running = h.Add(request);
  const SequenceId waiting = h.Add(request);
  request.kv_source = KvSource::kPrefillOnly;
  const SequenceId gated = h.Add(request);
  request.kv_source = KvSource::kRemote;
  const SequenceId remote = h.Add(request);
  EXPECT_EQ(h.engine.NextDeadline(), request.deadline);
  h.Run();
  for (SequenceId id : {running, waiting, gated, remote}) {
    EXPECT_EQ(h.outcomes[id].finish, FinishReason::kError);
    EXPECT_EQ(h.outcomes[id].error.code, Code::kDeadlineExceeded);
  }
  EXPECT_FALSE(h.outcomes[running].drawn.empty());
  EXPECT_EQ(h.engine.NextDeadline(), kNever);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, ExpireEndsAWaitingSequenceWhileNoStepRuns) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(20, 1), 5);
  request.kv_source = KvSource::kRemote;
  request.deadline = Instant{1000};
  const SequenceId id = h.Add(request);
  EXPECT_FALSE(h.engine.InFlight());
  h.engine.Expire(Instant{999});
  EXPECT_FALSE(h.engine.InFlight());
  h.engine.Expire(Instant{1000});
  ASSERT_TRUE(h.engine.InFlight());
  h.Take(h.engine.Collect());
  EXPECT_EQ(h.outcomes[id].error.code, Code::kDeadlineExceeded);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, NoOutputFollowsTheCancelOfAnExpiredSequence) {
  EngineHarness h(M());
  SequenceRequest request = MakeRequest(SomeTokens(20, 1), 5);
  request.deadline = Instant{1000};
  const SequenceId id = h.Add(request);
  h.engine.Expire(Instant{2000});
  h.engine.Cancel(id);
  EXPECT_FALSE(h.engine.InFlight());
}

TEST_P(EngineAtDepth, ARowErrorEndsThatSequenceOnly) {
  EngineHarness h(M());
  const SequenceId bad = h.Add(MakeRequest(SomeTokens(33, 1), 20, /*seed=*/666));
  const SequenceId good = h.Add(MakeRequest(SomeTokens(33, 2), 20));
  h.executor.row_fault = [](const SampleRow& row) -> Status {
    if (row.params->seed == 666 && row.position >= 36) return Internal("NaN in the logits");
    return {};
  };
  h.Run();
  EXPECT_EQ(h.outcomes[bad].finish, FinishReason::kError);
  EXPECT_EQ(h.outcomes[bad].error.message, "NaN in the logits");
  EXPECT_THAT(h.outcomes[bad].drawn, SizeIs(3));
  h.ExpectOracle(good);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, ARowErrorPublishesNoBlockOfItsStep) {
  EngineHarness h(M());
  h.Add(MakeRequest(SomeTokens(48, 1), 20));
  h.executor.row_fault = [](const SampleRow&) -> Status { return Internal("NaN in the logits"); };
  h.Run();
  EXPECT_EQ(h.engine.blocks().Stats().cached, 0);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, ASequenceWithoutABlockWaitsUntilALeaseEnds) {
  EngineHarness h(M(/*blocks=*/4));
  SequenceRequest remote = MakeRequest(SomeTokens(40, 2), 5);
  remote.kv_source = KvSource::kRemote;
  const SequenceId given_up = h.Add(remote);
  const auto grant = h.engine.GrantRemote(given_up);
  ASSERT_TRUE(grant);
  h.engine.Cancel(given_up);
  const SequenceId id = h.Add(MakeRequest(SomeTokens(10, 1), 30));
  h.Run();
  EXPECT_TRUE(h.engine.Alive(id)) << "three of four blocks are in quarantine";
  EXPECT_EQ(h.outcomes[id].drawn.size(), 7u);
  EXPECT_FALSE(h.engine.CanLaunch()) << "nothing to try again before something changes";
  h.engine.EndLease(grant->epoch);
  EXPECT_TRUE(h.engine.CanLaunch());
  h.Run();
  h.ExpectOracle(id);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, ChoicesOfOnePromptComputeItOnce) {
  EngineHarness h(M(), Budget(40, 40));
  SequenceRequest request = MakeRequest(SomeTokens(100, 1), 4);
  for (uint32_t choice = 0; choice < 5; ++choice) {
    request.sampling.choice = choice;
    h.Add(request);
  }
  h.Add(MakeRequest(SomeTokens(20, 2), 4));
  h.Run();
  h.ExpectAllOracle();
  // The first computes all 100, the others what is not in a whole block; then three rows each.
  EXPECT_EQ(h.executor.rows_computed(), 100u + 4 * 4 + 20 + 6 * 3);
}

TEST_P(EngineAtDepth, AFollowerGoesOnAloneWhenItsLeaderIsCancelled) {
  EngineHarness h(M(), Budget(16, 16));
  const SequenceId leader = h.Add(MakeRequest(SomeTokens(100, 1), 4, 1));
  const SequenceId follower = h.Add(MakeRequest(SomeTokens(100, 1), 4, 2));
  h.Step();
  h.Step();
  EXPECT_EQ(h.engine.Times(follower).first_scheduled, kNever);
  h.engine.Cancel(leader);
  h.Run();
  h.ExpectOracle(follower);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, AFailedLaunchEndsEverySequenceAsRetryable) {
  EngineHarness h(M());
  const SequenceId id = h.Add(MakeRequest(SomeTokens(33, 1), 20));
  h.Step();
  h.executor.fail_next_launch = Error{Code::kInternal, "lost the device"};
  EXPECT_FALSE(h.engine.Launch());
  ASSERT_TRUE(h.engine.InFlight());
  h.Take(h.engine.Collect());
  EXPECT_EQ(h.outcomes[id].error.code, Code::kUnavailable);
  EXPECT_THAT(h.outcomes[id].error.message, HasSubstr("lost the device"));
  EXPECT_FALSE(h.engine.failed());
  EXPECT_EQ(h.engine.Add(MakeRequest({1}, 1)).error().code, Code::kUnavailable);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, AFailedCollectEndsEverySequenceAsRetryable) {
  EngineHarness h(M());
  SequenceRequest gated = MakeRequest(SomeTokens(33, 1), 20);
  gated.kv_source = KvSource::kPrefillOnly;
  h.Add(MakeRequest(SomeTokens(33, 1), 20));
  h.Add(MakeRequest(SomeTokens(15, 3), 20));
  h.Add(gated);
  h.Step();
  h.executor.fail_next_collect = Error{Code::kInternal, "lost the device"};
  h.Step();
  while (h.engine.InFlight()) h.Take(h.engine.Collect());
  for (const auto& [id, outcome] : h.outcomes) EXPECT_EQ(outcome.error.code, Code::kUnavailable);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, ASequenceThatOutgrowsThePoolEndsWithBothNumbers) {
  EngineHarness h(M(/*blocks=*/3));
  const SequenceId id = h.Add(MakeRequest(SomeTokens(40, 1), 100));
  h.Run();
  EXPECT_EQ(h.outcomes[id].error.code, Code::kResourceExhausted);
  EXPECT_THAT(h.outcomes[id].error.message, HasSubstr("need 4 KV blocks, and the pool has 3"));
  EXPECT_THAT(h.outcomes[id].drawn, SizeIs(9));
  h.ExpectOraclePrefix(id);
  h.ExpectIdle();
}

TEST_P(EngineAtDepth, AFullEngineRefusesWithItsLimit) {
  EngineOptions options;
  options.max_sequences_total = 2;
  EngineHarness h(M(), options);
  h.Add(MakeRequest({1}, 1));
  h.Add(MakeRequest({2}, 1));
  const auto refused = h.engine.Add(MakeRequest({3}, 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kResourceExhausted);
  EXPECT_THAT(refused.error().message, HasSubstr("limit is 2"));
  h.Run();
  h.Add(MakeRequest({3}, 1));
  h.Run();
  h.ExpectAllOracle();
}

}  // namespace
}  // namespace aisp
