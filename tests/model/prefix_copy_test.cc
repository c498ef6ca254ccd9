// Prompts that begin inside cached blocks, over a real model: on the CPU the same tokens and the
// same bits of their log probabilities as computed whole.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <map>

#include "common/clock.h"
#include "common/random.h"
#include "engine/engine.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  int32_t cached = 0;
};

class PrefixCopies : public testing::TestWithParam<std::tuple<int32_t, DType>> {
 protected:
  Rig Open() const {
    const auto& [block_tokens, kv] = GetParam();
    return Rig::Open(
        StoryDirectory("story-7m"),
        {.block_tokens = block_tokens, .num_blocks = 1024 / block_tokens, .kv_dtype = kv});
  }
};
INSTANTIATE_TEST_SUITE_P(Blocks, PrefixCopies,
                         testing::Combine(testing::Values(16, 64),
                                          testing::Values(DType::kF32, DType::kF8E4M3)));

// One after the other, all of an engine.
std::vector<Answer> Ask(Rig& rig, const std::vector<std::vector<TokenId>>& prompts, bool caches) {
  SteadyClock clock;
  EngineOptions options;
  options.enable_prefix_cache = caches;
  options.limits.max_batch_tokens = options.limits.max_prefill_chunk = 96;
  Engine engine(options, rig.executor.get(), &clock, nullptr);
  std::vector<Answer> answers;
  for (const std::vector<TokenId>& prompt : prompts) {
    SequenceRequest request;
    request.tokens = prompt;
    request.prompt_tokens = static_cast<int32_t>(prompt.size());
    request.max_new_tokens = 5;
    request.sampling.temperature = 0;
    request.sampling.num_logprobs = 0;
    const Result<SequenceId> id = engine.Add(request);
    EXPECT_TRUE(id.has_value());
    Answer& answer = answers.emplace_back();
    while (engine.Alive(*id)) {
      EXPECT_TRUE(engine.Launch().has_value());
      for (const TokenOutput& output : engine.Collect().tokens) {
        answer.tokens.push_back(output.token);
        if (output.logprob) answer.logprobs.push_back(output.logprob->logprob);
      }
      engine.CheckInvariants();
    }
    answer.cached = engine.Times(*id).cached_tokens;
  }
  return answers;
}

TEST_P(PrefixCopies, OfRandomLengthsChangeNoBit) {
  if (StoryDirectory("story-7m").empty()) GTEST_SKIP() << "the story model is not there";
  Rig rig = Open();
  SplitMix64 random(7);
  const auto vocabulary = static_cast<uint64_t>(rig.executor->vocabulary());
  std::vector<std::vector<TokenId>> prompts(1);
  for (int i = 0; i < 192; ++i)
    prompts[0].push_back(static_cast<TokenId>(random.Below(vocabulary)));
  prompts.push_back(prompts[0]);
  for (int i = 0; i < 12; ++i) {
    std::vector<TokenId> prompt = prompts[random.Below(prompts.size())];
    prompt.resize(1 + random.Below(prompt.size()));
    for (uint64_t more = random.Below(30); more > 0; --more)
      prompt.push_back(static_cast<TokenId>(random.Below(vocabulary)));
    prompts.push_back(prompt);
  }
  const std::vector<Answer> whole = Ask(rig, prompts, false);
  const std::vector<Answer> copied = Ask(rig, prompts, true);
  EXPECT_EQ(copied[1].cached, 191);
  int inside = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(whole[i].cached, 0);
    EXPECT_EQ(copied[i].tokens, whole[i].tokens);
    ASSERT_EQ(copied[i].logprobs.size(), whole[i].logprobs.size());
    ASSERT_EQ(copied[i].logprobs.size(), 5u);
    for (size_t j = 0; j < 5; ++j) {
      EXPECT_EQ(std::bit_cast<uint32_t>(copied[i].logprobs[j]),
                std::bit_cast<uint32_t>(whole[i].logprobs[j]));
    }
    inside += copied[i].cached % std::get<0>(GetParam()) > 0 ? 1 : 0;
  }
  EXPECT_GT(inside, 4);
}

}  // namespace
}  // namespace aisp
