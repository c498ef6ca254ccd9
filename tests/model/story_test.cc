// The built-in models compared with what transformers generated with them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "kernels/cpu/cpu_ops.h"
#include "model/files.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

struct StoryCase {
  std::vector<TokenId> prompt, greedy;
  double margin = 0;
};

std::vector<StoryCase> Cases(const std::string& directory) {
  std::vector<StoryCase> out;
  const nlohmann::json json = nlohmann::json::parse(*ReadTextFile(directory + "/expected.json"));
  for (const auto& c : json["cases"]) {
    out.push_back({c["prompt_ids"].get<std::vector<TokenId>>(),
                   c["greedy_ids"].get<std::vector<TokenId>>(),
                   c["min_top2_margin"].get<double>()});
  }
  return out;
}

class Story : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    directory_ = StoryDirectory(GetParam());
    if (directory_.empty()) GTEST_SKIP() << "the built-in model is not there";
  }
  // Compares greedy ids of every case whose margin is above `margin`; returns how many were
  // compared.
  int Compare(DType dtype, double margin) {
    Rig rig = Rig::Open(directory_, {.compute_dtype = dtype});
    const std::vector<TokenId> eos = rig.executor->model().spec().eos;
    int compared = 0;
    for (const StoryCase& c : Cases(directory_)) {
      if (c.margin <= margin) continue;
      EXPECT_EQ(rig.Greedy(c.prompt, static_cast<int32_t>(c.greedy.size()), 64, eos), c.greedy);
      ++compared;
    }
    return compared;
  }
  std::string directory_;
};

TEST_P(Story, GreedyTokensInF32AreTheRecordedOnes) { EXPECT_GT(Compare(DType::kF32, 1e-4), 4); }

TEST_P(Story, GreedyTokensInBf16AreTheRecordedOnesWhereTheMarginIsWide) {
  if (!CpuComputes(DType::kBF16)) GTEST_SKIP() << "this CPU has no bf16 products";
  EXPECT_GT(Compare(DType::kBF16, 1.2e-2), 0);
}

INSTANTIATE_TEST_SUITE_P(Models, Story, testing::Values("story-7m", "story-draft-1m"),
                         [](const auto& model) {
                           return model.param == "story-7m" ? std::string("story_7m")
                                                            : std::string("story_draft_1m");
                         });

}  // namespace
}  // namespace aisp
