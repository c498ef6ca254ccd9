// Draft tokens with a real model: the answer has the same bits whatever is drafted, and the KV of
// rejected tokens is overwritten.
#include <gtest/gtest.h>

#include "common/random.h"
#include "engine/engine.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

std::vector<TokenId> Answer(const std::string& directory, int32_t right, int* steps) {
  auto device = MakeTestDevice();
  auto ops = MakeTestOps();
  ModelExecutorOptions options;
  options.model.compute_dtype = DType::kF32;
  options.model.max_batch_tokens = 64;
  options.max_slots = 4;
  options.max_draft_rows = 8;
  options.num_blocks = 32;
  auto executor = ModelExecutor::Create(directory, options, *device, *ops);
  EXPECT_TRUE(executor.has_value()) << executor.error().message;
  EngineOptions engine_options;
  engine_options.limits.max_sequences = 4;
  engine_options.limits.max_draft_rows = 8;
  const SteadyClock clock;
  Engine engine(engine_options, executor->get(), &clock, nullptr);
  SequenceRequest request;
  request.tokens = {3, 1, 4, 1, 5, 9, 2, 6};
  request.prompt_tokens = 8;
  request.max_new_tokens = 60;
  request.sampling.seed = 11;
  request.sampling.temperature = 0.8f;
  const auto id = engine.Add(request);
  EXPECT_TRUE(id.has_value());
  static std::vector<TokenId> expected;  // of the run without drafts
  std::vector<TokenId> out;
  SplitMix64 random(7);
  for (*steps = 0; engine.CanLaunch() || engine.InFlight(); ++*steps) {
    if (right >= 0) {
      std::vector<TokenId> proposed;
      for (size_t i = out.size(); i < expected.size() && proposed.size() < 8; ++i) {
        proposed.push_back(static_cast<int32_t>(proposed.size()) < right
                               ? expected[i]
                               : static_cast<TokenId>(random.Below(64)));
      }
      engine.Propose(*id, proposed);
    }
    EXPECT_TRUE(engine.Launch().has_value());
    for (const TokenOutput& output : engine.Collect().tokens) {
      if (output.token >= 0) out.push_back(output.token);
    }
    engine.CheckInvariants();
  }
  if (right < 0) expected = out;
  return out;
}

TEST(ModelDrafts, ProposalsDoNotChangeAnAnswer) {
  const std::string directory = GoldenDirectory("llama");
  int plain = 0, steps = 0;
  const std::vector<TokenId> expected = Answer(directory, -1, &plain);
  ASSERT_EQ(expected.size(), 60u);
  for (const int32_t right : {0, 1, 3, 8}) {
    EXPECT_EQ(Answer(directory, right, &steps), expected) << right << " right ones";
    if (right == 8) {
      EXPECT_LT(steps, plain / 5);
    }
  }
}

}  // namespace
}  // namespace aisp
