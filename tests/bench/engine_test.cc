// The engine's benchmark: a closed loop answers every request, and its numbers are consistent.
#include "bench/engine.h"

#include <gmock/gmock.h>

#include "server/backend.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class BenchEngineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.model.path = AISP_SOURCE_DIR "/models/story-7m";
    config_.model.device = "cpu";
    config_.engine.kv_blocks = 64;
    auto served = LoadServedModel(config_);
    ASSERT_TRUE(served) << served.error().message;
    served_ = std::move(*served);
    auto backend = MakeBackend(config_, *served_);
    ASSERT_TRUE(backend) << backend.error().message;
    backend_ = std::move(*backend);
    options_.prompt_tokens = 24;
    options_.output_tokens = 16;
    options_.batches = {3};
    options_.serving = EngineOptionsOf(config_, served_->fingerprint);
  }

  Config config_;
  std::unique_ptr<ServedModel> served_;
  Backend backend_;
  EngineBenchOptions options_;
};

TEST_F(BenchEngineTest, AClosedLoopCountsWholeRequests) {
  options_.rounds = 4;
  const auto results = BenchEngine(options_, *backend_.executor);
  ASSERT_TRUE(results) << results.error().message;
  ASSERT_EQ(results->size(), 1u);
  ASSERT_TRUE(results->front().closed_loop.has_value());
  const ClosedLoopResult& loop = *results->front().closed_loop;
  EXPECT_EQ(loop.streams, 3);
  EXPECT_EQ(loop.requests, 12);
  EXPECT_NEAR(loop.output_tokens_per_s * loop.seconds, 12 * 16, 1e-6);
  // Three streams of 16 tokens, four rounds each; no step draws more than three tokens.
  EXPECT_GE(loop.steps, 64u);
  EXPECT_LE(loop.steps, 12 * 16u);
  EXPECT_GT(loop.mixed_percent, 0);
  EXPECT_LT(loop.mixed_percent, 50);
  EXPECT_GT(loop.ttft_ms, 0);
  EXPECT_NEAR(loop.step_ms * static_cast<double>(loop.steps), 1e3 * loop.seconds, 1e-3);
  EXPECT_THAT(ToJson(results->front()), HasSubstr("\"closed_loop\": {\"streams\": 3"));
}

TEST_F(BenchEngineTest, PromptsAreTimedOneByOne) {
  const auto times = BenchPrompts({.tokens = 24, .count = 3, .rest = std::chrono::milliseconds(1)},
                                  *backend_.executor);
  ASSERT_TRUE(times) << times.error().message;
  EXPECT_EQ(times->tokens, 24);
  EXPECT_EQ(times->count, 3);
  EXPECT_GT(times->first_ms, 0);
  EXPECT_GT(times->rested_ms, 0);
  EXPECT_GT(times->back_to_back_ms, 0);
  EXPECT_EQ(times->device_ms, 0);
  EXPECT_THAT(ToJson(*times), HasSubstr("\"tokens\": 24, \"count\": 3, \"first_ms\": "));
}

TEST_F(BenchEngineTest, OnePromptHasNoMedian) {
  const auto times = BenchPrompts({.tokens = 24, .count = 1}, *backend_.executor);
  ASSERT_FALSE(times);
  EXPECT_EQ(times.error().code, Code::kInvalidArgument);
}

TEST_F(BenchEngineTest, WithoutRoundsThereIsNone) {
  const auto results = BenchEngine(options_, *backend_.executor);
  ASSERT_TRUE(results) << results.error().message;
  EXPECT_FALSE(results->front().closed_loop.has_value());
  EXPECT_THAT(ToJson(results->front()), Not(HasSubstr("closed_loop")));
}

}  // namespace
}  // namespace aisp
