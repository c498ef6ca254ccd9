// Constrained sequences on an asynchronous device: a step is launched before the previous tokens
// are known, and its masks are made while it runs.
#include <gtest/gtest.h>

#include "tests/engine/engine_harness.h"

namespace aisp {
namespace {

ProvenanceOptions AsyncModel() {
  ProvenanceOptions model;
  model.max_depth = 2;
  model.vocabulary = 200;
  return model;
}

SequenceRequest Guided(uint64_t seed, int32_t max_new_tokens, size_t length) {
  SequenceRequest request = MakeRequest(SomeTokens(5, seed), max_new_tokens, seed);
  for (TokenId& t : request.tokens) t %= 200;
  request.guide = std::make_shared<HashGuide>(seed, 200, length);
  return request;
}

TEST(EngineGuide, StepsAreLaunchedBeforeTheTokensTheirMasksDependOnAreKnown) {
  EngineHarness h(AsyncModel());
  const SequenceId ends = h.Add(Guided(1, 100, 12));
  const SequenceId cut = h.Add(Guided(2, 9, 50));
  const SequenceId plain = h.Add(MakeRequest({1, 2, 3}, 20));
  h.Run();
  h.ExpectAllOracle();
  EXPECT_EQ(h.outcomes[ends].finish, FinishReason::kStop);
  EXPECT_EQ(h.outcomes[ends].drawn.size(), 12u);
  EXPECT_EQ(h.outcomes[cut].finish, FinishReason::kLength);
  EXPECT_EQ(h.outcomes[plain].drawn.size(), 20u);
  // Every draw but each sequence's first follows one that was not collected when it was planned.
  EXPECT_GE(h.executor.rows_from_device(), 11u + 8u + 19u);
  h.ExpectIdle();
}

TEST(EngineGuide, AStopTokenEndsASequenceWhoseNextStepIsUnderWay) {
  EngineHarness h(AsyncModel());
  SequenceRequest request = Guided(3, 40, 60);
  const std::vector<TokenId> all = ExpectedOutput(AsyncModel(), request).tokens;
  request.stop_token_ids = {all[7]};
  const SequenceId id = h.Add(request);
  h.Run();
  h.ExpectOracle(id);
  EXPECT_EQ(h.outcomes[id].finish, FinishReason::kStop);
  h.ExpectIdle();
}

TEST(EngineGuide, ACancelBetweenLaunchAndCollectLeavesTheOthersWhole) {
  EngineHarness h(AsyncModel());
  const SequenceId gone = h.Add(Guided(4, 40, 60));
  const SequenceId stays = h.Add(Guided(5, 40, 25));
  for (int i = 0; i < 4; ++i) h.Step();
  ASSERT_TRUE(h.engine.Launch().has_value());
  h.engine.Cancel(gone);
  h.Run();
  h.ExpectOraclePrefix(gone);
  h.ExpectOracle(stays);
  h.ExpectIdle();
}

TEST(EngineGuide, ARowThatFailsEndsItsSequenceAlone) {
  EngineHarness h(AsyncModel());
  const SequenceId fails = h.Add(Guided(6, 40, 60));
  const SequenceId stays = h.Add(Guided(7, 40, 25));
  h.executor.row_fault = [](const SampleRow& row) -> Status {
    if (row.params->seed == 6 && row.position == 9) return Internal("not finite");
    return {};
  };
  h.Run();
  h.ExpectOraclePrefix(fails);
  EXPECT_EQ(h.outcomes[fails].finish, FinishReason::kError);
  h.ExpectOracle(stays);
  h.ExpectIdle();
}

TEST(EngineGuide, ADeviceThatFailsWhileMasksAreAwaitedFailsTheEngineOnce) {
  EngineHarness h(AsyncModel());
  const SequenceId id = h.Add(Guided(8, 40, 60));
  for (int i = 0; i < 3; ++i) h.Step();
  h.executor.fail_next_collect = Error{Code::kUnavailable, "the device is gone"};
  // The next launch waits for the step in flight and sees the failure there.
  if (h.engine.CanLaunch()) (void)h.engine.Launch();
  for (int i = 0; i < 4 && h.engine.InFlight(); ++i) h.Take(h.engine.Collect());
  EXPECT_TRUE(h.outcomes[id].ended);
  EXPECT_EQ(h.outcomes[id].finish, FinishReason::kError);
  EXPECT_FALSE(h.engine.CanLaunch());
}

}  // namespace
}  // namespace aisp
