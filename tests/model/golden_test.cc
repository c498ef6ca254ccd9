// The model families against recorded outputs of Hugging Face transformers.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>

#include "tests/model/golden.h"

namespace aisp {
namespace {

constexpr double kLogitTolerance = 2e-3;

// Family, block size, chunk size.
class Golden : public testing::TestWithParam<std::tuple<std::string, int32_t, int32_t>> {};

TEST_P(Golden, LastLogitsAndGreedyTokensAreTheRecordedOnes) {
  const auto& [family, block_tokens, chunk] = GetParam();
  Rig rig = Rig::Open(GoldenDirectory(family), {.block_tokens = block_tokens});
  for (const GoldenCase& c : LoadGolden(family)) {
    SCOPED_TRACE(testing::Message() << "prompt of " << c.prompt.size());
    auto sequence = rig.NewSequence(c.prompt, static_cast<int32_t>(c.prompt.size()));
    const std::vector<float> logits = rig.LastLogits(sequence, chunk);
    ASSERT_EQ(logits.size(), c.last_logits.size());
    double worst = 0;
    for (size_t i = 0; i < logits.size(); ++i)
      worst = std::max(worst, std::fabs(static_cast<double>(logits[i] - c.last_logits[i])));
    EXPECT_LT(worst, kLogitTolerance);
    if (c.min_top2_margin > 1e-3) {
      EXPECT_EQ(rig.Greedy(c.prompt, static_cast<int32_t>(c.greedy.size()), chunk), c.greedy);
    }
  }
}

TEST_P(Golden, MeanNllOfThePromptIsTheRecordedOne) {
  const auto& [family, block_tokens, chunk] = GetParam();
  Rig rig = Rig::Open(GoldenDirectory(family), {.block_tokens = block_tokens});
  int checked = 0;
  for (const GoldenCase& c : LoadGolden(family)) {
    if (c.mean_nll < 0) continue;
    EXPECT_NEAR(MeanNll(c.prompt, rig.AllLogits(c.prompt, chunk)), c.mean_nll, 1e-3);
    ++checked;
  }
  EXPECT_GT(checked, 0);
}

std::string Name(const testing::TestParamInfo<Golden::ParamType>& info) {
  std::string family = std::get<0>(info.param);
  std::replace(family.begin(), family.end(), '-', '_');
  return family + "_blocks_of_" + std::to_string(std::get<1>(info.param)) + "_chunks_of_" +
         std::to_string(std::get<2>(info.param));
}

INSTANTIATE_TEST_SUITE_P(
    Families, Golden,
    testing::Combine(testing::Values("llama", "llama3-rope", "llama-mha-hd128", "mistral-window",
                                     "qwen2", "qwen3", "mixtral", "qwen3-moe", "deepseek-v3",
                                     "llama-fp8-channel", "llama-fp8-block", "llama-nvfp4"),
                     testing::Values(16, 64), testing::Values(256, 7)),
    Name);

TEST(GoldenBf16, LogitsStayCloseToTheF32Ones) {
  if (!CpuComputes(DType::kBF16)) GTEST_SKIP() << "this CPU has no bf16 products";
  Rig rig = Rig::Open(GoldenDirectory("llama"), {.compute_dtype = DType::kBF16});
  for (const GoldenCase& c : LoadGolden("llama")) {
    auto sequence = rig.NewSequence(c.prompt, static_cast<int32_t>(c.prompt.size()));
    const std::vector<float> logits = rig.LastLogits(sequence, 256);
    double error = 0, norm = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      error += std::pow(logits[i] - c.last_logits[i], 2);
      norm += std::pow(c.last_logits[i], 2);
    }
    // Weights, activations and KV are rounded to 8 bits of mantissa; 2.2e-2 was measured.
    EXPECT_LT(std::sqrt(error / norm), 0.03);
  }
}

}  // namespace
}  // namespace aisp
