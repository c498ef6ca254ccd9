// An error ends what is at fault: a request's only that request; a step's the request that caused
// it; a device's everything, as retryable.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/engine/engine_harness.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kPoison = 7;

class EngineFaults : public ::testing::TestWithParam<int> {
 protected:
  static ProvenanceOptions M() {
    ProvenanceOptions options;
    options.max_depth = GetParam();
    return options;
  }
  // Tokens other than the poison.
  static std::vector<TokenId> Clean(int32_t count, uint64_t seed) {
    std::vector<TokenId> tokens = SomeTokens(count, seed);
    for (TokenId& token : tokens) token = token == kPoison ? 8 : token;
    return tokens;
  }
  static std::vector<TokenId> Poisoned(int32_t count, uint64_t seed) {
    std::vector<TokenId> tokens = Clean(count, seed);
    tokens[tokens.size() / 2] = kPoison;
    return tokens;
  }
};

INSTANTIATE_TEST_SUITE_P(Depth, EngineFaults, ::testing::Values(1, 2));

// As for a row whose KV, from a cache or another worker, has NaNs.
Status NoNumbers(const SampleRow& row) {
  if (row.params->seed == 666) return Internal("the logits are not finite");
  return {};
}

TEST_P(EngineFaults, APrefixThatGaveNoNumbersIsComputedAnew) {
  EngineHarness h(M());
  const std::vector<TokenId> prompt = SomeTokens(100, 1);
  const std::vector<TokenId> other = SomeTokens(100, 2);
  h.Add(MakeRequest(prompt, 2));
  h.Add(MakeRequest(other, 2));
  h.Run();
  h.executor.row_fault = NoNumbers;
  const SequenceId bad = h.Add(MakeRequest(prompt, 2, /*seed=*/666));
  h.Run();
  EXPECT_EQ(h.outcomes[bad].finish, FinishReason::kError);
  const BlockManager& blocks = h.engine.blocks();
  EXPECT_EQ(blocks.MatchLength(h.engine.RootOf(""), prompt, 100), 0);
  EXPECT_EQ(blocks.MatchLength(h.engine.RootOf(""), other, 100), 96) << "and no other one";
  const uint64_t hits = blocks.Stats().hits_tokens;
  const SequenceId next = h.Add(MakeRequest(prompt, 2));
  h.Run();
  EXPECT_EQ(blocks.Stats().hits_tokens, hits);
  h.ExpectOracle(next);
  EXPECT_EQ(blocks.MatchLength(h.engine.RootOf(""), prompt, 100), 96) << "it is cached again";
  h.ExpectIdle();
}

// Else sequences in flight would pass it on to each other endlessly.
TEST_P(EngineFaults, WhoRunsOnAForgottenPrefixDoesNotPublishItAgain) {
  EngineHarness h(M());
  const std::vector<TokenId> prompt = SomeTokens(100, 1);
  h.Add(MakeRequest(prompt, 2));
  h.Run();
  h.executor.row_fault = NoNumbers;
  const SequenceId beside = h.Add(MakeRequest(prompt, 60));
  for (int i = 0; i < 4; ++i) h.Step();
  const SequenceId bad = h.Add(MakeRequest(prompt, 2, /*seed=*/666));
  h.Run();
  EXPECT_EQ(h.outcomes[bad].finish, FinishReason::kError);
  h.ExpectOracle(beside);
  EXPECT_EQ(h.engine.blocks().Stats().cached, 0);
  h.ExpectIdle();
}

TEST_P(EngineFaults, AnErrorThatIsNoFaultOfTheKvLeavesThePrefixAlone) {
  EngineHarness h(M());
  const std::vector<TokenId> prompt = SomeTokens(100, 1);
  h.executor.row_fault = [](const SampleRow& row) -> Status {
    return row.params->seed == 666 ? InvalidArgument("nothing is left to draw") : Status();
  };
  h.Add(MakeRequest(prompt, 2));
  h.Run();
  h.Add(MakeRequest(prompt, 2, /*seed=*/666));
  h.Run();
  EXPECT_EQ(h.engine.blocks().MatchLength(h.engine.RootOf(""), prompt, 100), 96);
  h.ExpectIdle();
}

TEST_P(EngineFaults, AnIdBeyondTheVocabularyIsRefusedByItselfAndNobodyElseNotices) {
  EngineHarness h(M());
  const SequenceId good = h.Add(MakeRequest(SomeTokens(33, 1), 8));
  for (const TokenId wrong : {-1, 1000, INT32_MAX}) {
    std::vector<TokenId> tokens = SomeTokens(20, 2);
    tokens[5] = wrong;
    const auto added = h.engine.Add(MakeRequest(tokens, 8));
    ASSERT_FALSE(added);
    EXPECT_EQ(added.error().code, Code::kInvalidArgument);
    EXPECT_THAT(added.error().message, HasSubstr("token " + std::to_string(wrong)));
    EXPECT_THAT(added.error().message, HasSubstr("position 5"));
    EXPECT_THAT(added.error().message, HasSubstr("1000 ids"));
  }
  std::vector<TokenId> tokens = SomeTokens(20, 2);
  tokens[0] = 1000;
  SequenceRequest gated = MakeRequest(tokens, 8);
  gated.kv_source = KvSource::kPrefillOnly;
  EXPECT_FALSE(h.engine.Add(gated)) << "a prefill worker checks too";
  h.Run();
  h.ExpectOracle(good);
  EXPECT_TRUE(h.engine.failed());
  h.ExpectIdle();
}

TEST_P(EngineFaults, OneRequestThatFailsItsStepsEndsAloneAndTheOthersGoOn) {
  EngineHarness h(M());
  h.executor.poison = kPoison;
  const SequenceId before = h.Add(MakeRequest(Clean(33, 1), 12, 1));
  h.Step();
  const SequenceId bad = h.Add(MakeRequest(Poisoned(40, 2), 12, 2));
  const SequenceId beside = h.Add(MakeRequest(Clean(50, 3), 12, 3));
  h.Run();
  EXPECT_EQ(h.outcomes[bad].finish, FinishReason::kError);
  EXPECT_EQ(h.outcomes[bad].fault, Fault::kRequest) << "nobody else shall try it";
  EXPECT_THAT(h.outcomes[bad].error.message, HasSubstr("a poisoned step"));
  EXPECT_TRUE(h.engine.failed()) << "the device lives";
  for (const SequenceId good : {before, beside}) {
    // It may itself draw the poison's id; then it is at fault in a later step.
    const auto expected = ExpectedOutput(M(), h.outcomes[good].request).tokens;
    if (std::find(expected.begin(), expected.end(), kPoison) == expected.end()) {
      h.ExpectOracle(good);
    }
  }
  h.ExpectIdle();
}

TEST_P(EngineFaults, SeveralPoisonedRequestsAreToldApart) {
  EngineHarness h(M());
  h.executor.poison = kPoison;
  std::vector<SequenceId> good, bad;
  for (uint64_t i = 0; i < 6; ++i) {
    good.push_back(h.Add(MakeRequest(Clean(20, 10 + i), 2, i)));
    if (i % 2 == 0) bad.push_back(h.Add(MakeRequest(Poisoned(20, 20 + i), 2, i)));
  }
  h.Run();
  for (const SequenceId id : bad) {
    EXPECT_EQ(h.outcomes[id].finish, FinishReason::kError);
    EXPECT_EQ(h.outcomes[id].fault, Fault::kRequest);
  }
  for (const SequenceId id : good) EXPECT_NE(h.outcomes[id].finish, FinishReason::kError);
  EXPECT_TRUE(h.engine.failed());
  h.ExpectIdle();
}

TEST_P(EngineFaults, AStepThatFailsOnceCostsNobodyAnything) {
  EngineHarness h(M());
  const SequenceId a = h.Add(MakeRequest(SomeTokens(33, 1), 12));
  const SequenceId b = h.Add(MakeRequest(SomeTokens(20, 2), 12));
  h.Step();
  h.Step();
  h.executor.fail_next_launch = Error{Code::kInvalidArgument, "an odd step"};
  h.Run();
  h.ExpectOracle(a);
  h.ExpectOracle(b);
  EXPECT_TRUE(h.engine.failed());
  h.ExpectIdle();
}

TEST_P(EngineFaults, MemoryThatIsMissingForAStepIsRetryableElsewhere) {
  EngineHarness h(M());
  const SequenceId only = h.Add(MakeRequest(SomeTokens(33, 1), 12));
  h.executor.fail_next_launch = Error{Code::kResourceExhausted, "no memory for logits"};
  h.Run();
  EXPECT_EQ(h.outcomes[only].fault, Fault::kStep);
  EXPECT_EQ(h.outcomes[only].error.code, Code::kUnavailable);
  EXPECT_TRUE(h.engine.failed());
  h.ExpectIdle();
}

TEST_P(EngineFaults, ADeviceThatFailsEveryStepIsTakenForDead) {
  EngineHarness h(M());
  for (uint64_t i = 0; i < 20; ++i) h.Add(MakeRequest(SomeTokens(20, i), 4));
  h.executor.fail_every_launch = Error{Code::kInvalidArgument, "whatever is asked"};
  int steps = 0;
  while (h.engine.failed() && ++steps < 100) {
    static_cast<void>(h.engine.Launch());
    if (h.engine.InFlight()) h.Take(h.engine.Collect());
  }
  EXPECT_FALSE(h.engine.failed());
  while (h.engine.InFlight()) h.Take(h.engine.Collect());
  int retryable = 0;
  for (const auto& [id, outcome] : h.outcomes) retryable += MayRetry(outcome.fault) ? 1 : 0;
  EXPECT_GE(retryable, 12) << "few were blamed before the device was";
  h.ExpectIdle();
}

TEST_P(EngineFaults, ADeviceThatFailsForGoodEndsEverybodyAsRetryable) {
  for (const bool in_collect : {false, true}) {
    EngineHarness h(M());
    h.Add(MakeRequest(SomeTokens(33, 1), 12));
    h.Add(MakeRequest(SomeTokens(20, 2), 12));
    h.Step();
    auto& fault = in_collect ? h.executor.fail_next_collect : h.executor.fail_next_launch;
    fault = Error{Code::kUnavailable, "lost the device"};
    static_cast<void>(h.engine.Launch());
    while (h.engine.InFlight()) h.Take(h.engine.Collect());
    EXPECT_FALSE(h.engine.failed());
    for (const auto& [id, outcome] : h.outcomes) EXPECT_EQ(outcome.fault, Fault::kDevice);
    h.ExpectIdle();
  }
}

TEST_P(EngineFaults, ADrawWithoutRoomBesideOthersIsDrawnInALaterStep) {
  EngineHarness h(M());
  constexpr int kRoom = 2;  // draws per step that have room
  uint64_t step = 0;
  int drawn = 0, refused = 0;
  h.executor.row_fault = [&](const SampleRow&) -> Status {
    if (h.executor.steps() != step) drawn = 0;
    step = h.executor.steps();
    if (drawn++ < kRoom) return {};
    ++refused;
    return ResourceExhausted("penalties and biases name too many tokens");
  };
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SequenceRequest request = MakeRequest(SomeTokens(33, seed), 12, seed);
    request.sampling.frequency_penalty = 0.5f;
    h.Add(request);
  }
  h.Run();
  EXPECT_GT(refused, 5);
  h.ExpectAllOracle();
  h.ExpectIdle();
}

TEST_P(EngineFaults, ADrawWithoutRoomAloneInItsStepIsAnError) {
  EngineHarness h(M());
  h.executor.row_fault = [](const SampleRow&) { return Status(ResourceExhausted("no room")); };
  const SequenceId id = h.Add(MakeRequest(SomeTokens(33, 1), 12));
  h.Run();
  EXPECT_EQ(h.outcomes[id].finish, FinishReason::kError);
  EXPECT_EQ(h.outcomes[id].error.code, Code::kResourceExhausted);
  h.ExpectIdle();
}

}  // namespace
}  // namespace aisp
