// Which requests an engine refuses, in which order it starts them, and what it reports of its
// steps.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

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

// Peers send parameters too: a prefill worker draws with a decode worker's.
TEST(Engine, DrawsThatNoNumberDescribesAreTheirRequestsError) {
  EngineHarness h(SmallModel());
  const float nan = NAN, inf = INFINITY;
  const std::function<void(SequenceRequest&, float)> fields[] = {
      [](SequenceRequest& r, float v) { r.sampling.temperature = v; },
      [](SequenceRequest& r, float v) { r.sampling.top_p = v; },
      [](SequenceRequest& r, float v) { r.sampling.min_p = v; },
      [](SequenceRequest& r, float v) { r.sampling.presence_penalty = v; },
      [](SequenceRequest& r, float v) { r.sampling.frequency_penalty = v; },
      [](SequenceRequest& r, float v) { r.sampling.repetition_penalty = v; },
      [](SequenceRequest& r, float v) {
        r.sampling.logit_bias = {{3, v}};
      },
  };
  for (const KvSource source : {KvSource::kLocal, KvSource::kPrefillOnly, KvSource::kRemote}) {
    for (const auto& field : fields) {
      for (const float value : {nan, inf, -inf, 1e30f, -1e30f}) {
        SequenceRequest request = MakeRequest(SomeTokens(10, 1));
        request.kv_source = source;
        request.draws_first = source == KvSource::kPrefillOnly;
        field(request, value);
        const auto added = h.engine.Add(std::move(request));
        ASSERT_FALSE(added.has_value()) << value;
        EXPECT_EQ(added.error().code, Code::kInvalidArgument);
        EXPECT_EQ(FaultOf(added.error().code), Fault::kRequest);
      }
    }
  }
  const std::function<void(SequenceRequest&)> counts[] = {
      [](SequenceRequest& r) { r.sampling.min_p = 1.5f; },
      [](SequenceRequest& r) { r.sampling.num_logprobs = INT32_MAX; },
      [](SequenceRequest& r) { r.stop_token_ids.assign(1001, 7); },
      [](SequenceRequest& r) {
        r.sampling.logit_bias.assign(1001, {7, 1.0f});
      },
  };
  for (const auto& count : counts) {
    SequenceRequest request = MakeRequest(SomeTokens(10, 1));
    count(request);
    EXPECT_FALSE(h.engine.Add(std::move(request)).has_value());
  }
  h.ExpectIdle();
}

TEST(Engine, TemperaturesThatOverflowLogitsAreGreedy) {
  std::vector<SamplingParams> seen;
  EngineHarness h(SmallModel());
  h.executor.row_fault = [&](const SampleRow& row) -> Status {
    seen.push_back(*row.params);
    return {};
  };
  SequenceRequest request = MakeRequest(SomeTokens(10, 1), 1);
  request.sampling.temperature = 1e-40f;
  request.sampling.repetition_penalty = 1e-40f;
  h.Add(request);
  h.Run();
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].temperature, 0);
  EXPECT_GT(100 / seen[0].repetition_penalty, 0);
  EXPECT_TRUE(std::isfinite(100 / seen[0].repetition_penalty));
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
