// The determinism contract of the CPU: a row's logits are the same bits whatever the other rows of
// the batch are, however its prompt was chunked, and whatever the block size is.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/random.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

std::vector<TokenId> RandomTokens(size_t n, uint64_t seed, int32_t vocabulary) {
  SplitMix64 random(seed);
  std::vector<TokenId> out;
  for (size_t i = 0; i < n; ++i)
    out.push_back(static_cast<TokenId>(random.Below(static_cast<uint64_t>(vocabulary))));
  return out;
}

testing::AssertionResult SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size())
    return testing::AssertionFailure() << a.size() << " and " << b.size() << " logits";
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) {
      return testing::AssertionFailure() << "logit " << i << ": " << a[i] << " and " << b[i];
    }
  }
  return testing::AssertionSuccess();
}

class Invariance : public testing::TestWithParam<std::tuple<std::string, DType, int>> {
 protected:
  void SetUp() override {
    if (!CpuComputes(std::get<1>(GetParam()))) GTEST_SKIP() << "this CPU has no bf16 products";
  }
  Rig Open(int32_t block_tokens) const {
    const auto& [family, dtype, threads] = GetParam();
    const std::string directory =
        family == "story-7m" ? StoryDirectory(family) : GoldenDirectory(family);
    return Rig::Open(directory, {.block_tokens = block_tokens,
                                 .num_blocks = 512,
                                 .compute_dtype = dtype,
                                 .max_batch_tokens = 600,
                                 .max_slots = 300,
                                 .threads = threads});
  }
};

TEST_P(Invariance, ChunksAndBlockSizesDoNotMatter) {
  if (std::get<0>(GetParam()) == "story-7m" && StoryDirectory("story-7m").empty())
    GTEST_SKIP() << "the story model is not there";
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> expected;
  for (int32_t block_tokens : {16, 48, 128}) {
    Rig rig = Open(block_tokens);
    if (expected.empty()) {
      tokens = RandomTokens(203, 1, rig.executor->model().spec().vocabulary);
      expected = rig.AllLogits(tokens, 1);
    }
    for (int32_t chunk : {2, 3, 16, 17, 100, 203}) {
      const auto logits = rig.AllLogits(tokens, chunk);
      for (size_t i = 0; i < tokens.size(); ++i) {
        ASSERT_TRUE(SameBits(expected[i], logits[i]))
            << "position " << i << ", chunk " << chunk << ", block " << block_tokens;
      }
    }
  }
}

// Tied and untied output matrices, and quantised ones in each stored form.
TEST(OutputTokens, TheFirstHaveTheSameLogitsAndTheOthersNone) {
  for (const std::string family :
       {"llama", "qwen2", "llama-fp8-channel", "llama-fp8-block", "llama-nvfp4"}) {
    SCOPED_TRACE(family);
    Rig whole = Rig::Open(GoldenDirectory(family), {});
    const int32_t vocabulary = whole.executor->model().spec().vocabulary;
    const std::vector<TokenId> tokens = RandomTokens(21, 5, vocabulary);
    const auto expected = whole.AllLogits(tokens, 5);
    for (const int32_t count : {1, 100, vocabulary}) {
      Rig rig = Rig::Open(GoldenDirectory(family), {.output_tokens = count});
      for (int turn = 0; turn < 2; ++turn) {
        const auto logits = rig.AllLogits(tokens, 5);
        for (size_t i = 0; i < tokens.size(); ++i) {
          const auto end = expected[i].begin() + count;
          EXPECT_TRUE(
              SameBits({expected[i].begin(), end}, {logits[i].begin(), logits[i].begin() + count}));
          EXPECT_EQ(std::count(logits[i].begin() + count, logits[i].end(), kNoLogit),
                    vocabulary - count);
        }
      }
    }
  }
}

TEST_P(Invariance, NeighboursInTheBatchDoNotMatter) {
  if (std::get<0>(GetParam()) == "story-7m" && StoryDirectory("story-7m").empty())
    GTEST_SKIP() << "the story model is not there";
  Rig rig = Open(16);
  const int32_t vocabulary = rig.executor->model().spec().vocabulary;
  const auto prompt = RandomTokens(37, 2, vocabulary);
  const auto alone = rig.AllLogits(prompt, 1);
  for (int32_t others : {1, 2, 5, 15, 16, 31, 64, 200}) {
    std::vector<Rig::Sequence> sequences;
    std::vector<Rig::Rows> rows;
    for (int32_t i = 0; i < others; ++i)
      sequences.push_back(
          rig.NewSequence(RandomTokens(2, static_cast<uint64_t>(i) + 10, vocabulary), 2));
    sequences.push_back(rig.NewSequence(prompt, 37));
    rig.LastLogits(sequences.back(), 5);
    // Its last token once more, this time as a decode row among others, one of which is a prefill
    // chunk.
    sequences.back().computed = 36;
    for (auto& s : sequences) rows.push_back({&s, 1});
    rows.front().count = 2;
    const auto logits = rig.Step(rows);
    ASSERT_TRUE(SameBits(alone.back(), logits.back())) << others << " others";
  }
}

std::string Name(const testing::TestParamInfo<Invariance::ParamType>& info) {
  std::string name = std::get<0>(info.param) + "_" +
                     std::string(DTypeName(std::get<1>(info.param))) + "_threads_" +
                     std::to_string(std::get<2>(info.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Families, Invariance,
                         testing::Combine(testing::Values("llama", "mistral-window", "qwen3-moe",
                                                          "deepseek-v3", "story-7m"),
                                          testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(1)),
                         Name);
INSTANTIATE_TEST_SUITE_P(Threads, Invariance,
                         testing::Combine(testing::Values("llama", "qwen3-moe"),
                                          testing::Values(DType::kF32), testing::Values(3)),
                         Name);

}  // namespace
}  // namespace aisp
