// Medusa's heads: their logits equal PyTorch's (tools/train/medusa.py), and which files are
// refused.
#include "model/medusa_head.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "model/files.h"
#include "model/json_reader.h"
#include "tests/model/golden.h"
#include "tests/model/recorded.h"

namespace aisp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct HeadsRig {
  explicit HeadsRig(DType dtype) {
    target = Rig::Open(GoldenDirectory("llama"), {.compute_dtype = dtype});
    const Model& model = target.executor->model();
    const auto spec = LoadMedusaSpec(GoldenDirectory("llama-medusa"), model.spec());
    EXPECT_TRUE(spec.has_value()) << spec.error().message;
    auto made = MedusaHeads::Load(GoldenDirectory("llama-medusa"), *spec, model, {.max_rows = 8},
                                  *target.device, *target.ops);
    EXPECT_TRUE(made.has_value()) << made.error().message;
    heads = std::move(*made);
  }
  Rig target;
  std::unique_ptr<MedusaHeads> heads;
};

void ExpectGolden(DType dtype, float tolerance) {
  const Recorded recorded("llama-medusa");
  const std::vector<float> features = recorded.Values<float>("features");
  const std::vector<float> want = recorded.Values<float>("logits");  // [heads, rows, tokens]
  HeadsRig rig(dtype);
  const int32_t size = rig.heads->feature_size();
  std::vector<const float*> rows;
  for (size_t at = 0; at < features.size(); at += static_cast<size_t>(size))
    rows.push_back(features.data() + at);
  const auto count = static_cast<int32_t>(rows.size());
  const auto width = rig.heads->target_tokens().size();
  ASSERT_EQ(want.size(), 3 * rows.size() * width);
  ASSERT_TRUE(rig.heads->Run(rows, 3));
  std::vector<float> last_row;
  for (int32_t head = 0; head < 3; ++head) {
    for (int32_t row = 0; row < count; ++row) {
      const std::span<const float> have = rig.heads->Logits(head, row);
      const float* const expected = want.data() + static_cast<size_t>(head * count + row) * width;
      ASSERT_EQ(have.size(), width);
      for (size_t i = 0; i < width; ++i) ASSERT_NEAR(have[i], expected[i], tolerance) << i;
      if (head == 2 && row == count - 1) last_row.assign(have.begin(), have.end());
    }
  }
  // A row computed alone is the same, bit for bit.
  ASSERT_TRUE(rig.heads->Run(std::span(rows).last(1), 3));
  const std::span<const float> alone = rig.heads->Logits(2, 0);
  EXPECT_EQ(std::vector<float>(alone.begin(), alone.end()), last_row);
}

TEST(MedusaHeads, HaveTheLogitsOfPyTorch) { ExpectGolden(DType::kF32, 2e-4f); }

TEST(MedusaHeads, HaveTheLogitsOfPyTorchInBf16) {
  if (!CpuComputes(DType::kBF16)) GTEST_SKIP() << "this machine has no products in bf16";
  ExpectGolden(DType::kBF16, 0.15f);
}

// A copy of the golden heads with one thing changed.
class ChangedHeads : public ChangedFolder {
 protected:
  ChangedHeads() : ChangedFolder("llama-medusa") {}
  std::string Refusal() {
    const Rig rig = Rig::Open(GoldenDirectory("llama"), {});
    const Model& target = rig.executor->model();
    const auto spec = LoadMedusaSpec(folder_, target.spec());
    if (!spec) return spec.error().message;
    const auto heads = MedusaHeads::Load(folder_, *spec, target, {}, *rig.device, *rig.ops);
    return heads ? "" : heads.error().message;
  }
};

TEST_F(ChangedHeads, AreTakenAsTheyWere) { EXPECT_EQ(Refusal(), ""); }

TEST_F(ChangedHeads, OfAnotherHiddenSizeAreRefusedWithBothValues) {
  SetConfig("hidden_size", 64);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("hidden_size"), HasSubstr("64"), HasSubstr("128")));
}

TEST_F(ChangedHeads, OfAnotherVocabularyAreRefusedWithBothValues) {
  SetConfig("vocab_size", 1000);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("1000"), HasSubstr("512")));
}

TEST_F(ChangedHeads, WithoutATensorAreRefusedByName) {
  SetConfig("medusa_num_heads", 4);
  EXPECT_THAT(Refusal(), HasSubstr("3.0.linear"));
}

TEST_F(ChangedHeads, WithAMapOfAnotherSizeAreRefusedWithBothValues) {
  SetConfig("truncated_vocab_size", 100);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("token_map"), HasSubstr("128"), HasSubstr("100")));
}

TEST_F(ChangedHeads, WithAMapOutOfTheVocabularyAreRefused) {
  const int64_t far = 512;
  Write(Place("token_map") + 7 * sizeof(far),
        std::string_view(reinterpret_cast<const char*>(&far), sizeof(far)));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("token_map[7]"), HasSubstr("512")));
}

}  // namespace
}  // namespace aisp
