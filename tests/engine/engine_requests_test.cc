// What one engine refuses, in which order it starts, and what it says of its steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/small_engine.h"

namespace aisp {
namespace {

using testing::HasSubstr;

TEST(Engine, RequestsThatCannotRunAreRefusedWithBothNumbers) {
  ProvenanceOptions model = SmallModel(1, /*blocks=*/4);
  model.max_context = 200;
  EngineHarness h(model);
  const auto why = [&](const SequenceRequest& request) {
    const auto id = h.engine.Add(request);
    return id ? std::string("accepted") : id.error().ToString();
  };
  EXPECT_THAT(why(SequenceRequest{}), HasSubstr("INVALID_ARGUMENT"));
  EXPECT_THAT(why(MakeRequest(SomeTokens(200, 1))),
              testing::AllOf(HasSubstr("200 tokens"), HasSubstr("context is 200")));
  EXPECT_THAT(why(MakeRequest(SomeTokens(65, 1))),
              testing::AllOf(HasSubstr("5 KV blocks"), HasSubstr("has 4")));
  SequenceRequest wrong = MakeRequest(SomeTokens(10, 1));
  wrong.prompt_tokens = 11;
  EXPECT_THAT(why(wrong), HasSubstr("prompt_tokens is 11"));
  h.ExpectIdle();
}

TEST(Engine, AStopTokenAsTheLastTokenOfATakeoverEndsAtOnce) {
  EngineHarness h(SmallModel());
  SequenceRequest request = MakeRequest(SomeTokens(10, 1), 20);
  request.tokens.push_back(99);
  request.stop_token_ids = {99};
  const SequenceId id = h.Add(request);
  h.Run();
  EXPECT_EQ(h.outcomes[id].finish, FinishReason::kStop);
  EXPECT_EQ(h.executor.steps(), 0u);
}

TEST(Engine, GreaterPriorityStartsFirst) {
  EngineOptions options;
  options.limits.max_sequences = 1;
  EngineHarness h(SmallModel(), options);
  const SequenceId low = h.Add(MakeRequest(SomeTokens(10, 1), 2));
  SequenceRequest urgent = MakeRequest(SomeTokens(10, 2), 2);
  urgent.priority = 1;
  const SequenceId high = h.Add(urgent);
  h.Run();
  h.ExpectAllOracle();
  EXPECT_LT(h.engine.Times(high).first_token, h.engine.Times(low).first_scheduled);
}

TEST(Engine, AtDepthTwoTokensStayOnTheDeviceBetweenSteps) {
  EngineHarness h(SmallModel(2));
  h.Add(MakeRequest(SomeTokens(10, 1), 30));
  h.Run();
  EXPECT_EQ(h.executor.rows_from_device(), 29u);
  h.ExpectAllOracle();
}

TEST(Engine, AtDepthTwoPenaltiesWaitForTheTokenOnTheHost) {
  EngineHarness h(SmallModel(2));
  SequenceRequest request = MakeRequest(SomeTokens(10, 1), 30);
  request.sampling.repetition_penalty = 1.1f;
  h.Add(request);
  h.Run();
  EXPECT_EQ(h.executor.rows_from_device(), 0u);
  h.ExpectAllOracle();
}

TEST(Engine, StepTimingCountsRowsAndContext) {
  EngineHarness h(SmallModel());
  h.Add(MakeRequest(SomeTokens(10, 1), 3));
  h.Step();
  EXPECT_EQ(h.last_timing.prefill_tokens, 10);
  EXPECT_EQ(h.last_timing.decode_rows, 0);
  EXPECT_EQ(h.last_timing.prefill_context, 55);
  EXPECT_EQ(h.last_timing.decode_context, 0);
  h.Step();
  EXPECT_EQ(h.last_timing.prefill_tokens, 0);
  EXPECT_EQ(h.last_timing.decode_rows, 1);
  EXPECT_EQ(h.last_timing.prefill_context, 0);
  EXPECT_EQ(h.last_timing.decode_context, 11);
}

TEST(Engine, MilestonesAreInOrderAndOutliveTheSequence) {
  EngineHarness h(SmallModel(), Budget(8, 8));
  h.clock.Advance(std::chrono::milliseconds(5));
  const SequenceId id = h.Add(MakeRequest(SomeTokens(30, 1), 3));
  h.clock.Advance(std::chrono::milliseconds(2));
  h.Run();
  const SequenceTimes t = h.engine.Times(id);
  EXPECT_EQ(t.added.ns, 5'000'000);
  EXPECT_EQ(t.first_scheduled.ns, 7'000'000);
  EXPECT_LT(t.first_scheduled, t.prefill_done);
  EXPECT_LE(t.prefill_done, t.first_token);
  EXPECT_LT(t.first_token, kNever);
}

TEST(Engine, QueuedPrefillTokensCountWhatIsNotComputedYet) {
  EngineHarness h(SmallModel(), Budget(8, 8));
  h.Add(MakeRequest(SomeTokens(30, 1), 3));
  h.Add(MakeRequest(SomeTokens(5, 2), 3));
  EXPECT_EQ(h.engine.QueuedPrefill().tokens, 35);
  h.Step();
  EXPECT_EQ(h.engine.QueuedPrefill().tokens, 27);
  h.Run();
  EXPECT_EQ(h.engine.QueuedPrefill().tokens, 0);
}

}  // namespace
}  // namespace aisp
