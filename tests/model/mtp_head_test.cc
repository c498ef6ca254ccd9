// A next-token layer: its logits equal PyTorch's (tools/train/mtp.py) for every kind of model
// layer, and which files are refused.
#include "model/mtp_head.h"

#include <gmock/gmock.h>

#include <cstring>

#include "tests/model/golden.h"
#include "tests/model/head_rig.h"
#include "tests/model/recorded.h"

namespace aisp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

HeadRig LayerRig(const std::string& golden, const std::string& folder, const MtpSpec& spec,
                 DType dtype, std::optional<uint64_t> random = std::nullopt) {
  return HeadRig(GoldenDirectory(golden), dtype,
                 [&](const Model& target, Device& device, Ops& ops) {
                   return MtpHead::Load(folder, spec, target,
                                        {.compute_dtype = dtype,
                                         .max_rows = 32,
                                         .max_sequences = 24,
                                         .max_context = 64,
                                         .random_weights = random},
                                        device, ops);
                 });
}

constexpr int32_t kRows = 21;

// Computed in pieces, some of which need no logits, the last row is the same, bit for bit.
void ExpectTheSameInPieces(HeadRig& rig, std::span<const TokenId> tokens,
                           std::span<const float> features) {
  const auto width = static_cast<ptrdiff_t>(rig.head->logits().cols());
  const std::vector<float> whole = rig.Logits(kRows);
  std::memset(rig.pool.data(), 0xff, rig.pool.bytes());
  ASSERT_TRUE(rig.Run(0, 10, Wanted::kNone, tokens, features));
  ASSERT_TRUE(rig.Run(10, 3, Wanted::kLast, tokens, features));
  ASSERT_TRUE(rig.Run(13, 8, Wanted::kLast, tokens, features));
  EXPECT_EQ(rig.Logits(1), std::vector<float>(whole.end() - width, whole.end()));
}

// All rows of the target's features, then two of the layer's own, which continue after the last
// one.
void ExpectGolden(DType dtype, float tolerance) {
  const Recorded recorded("llama-mtp");
  const std::vector<int64_t> ids = recorded.Values<int64_t>("tokens");
  const std::vector<TokenId> tokens(ids.begin(), ids.end());
  const std::vector<float> features = recorded.Values<float>("features");
  const std::vector<float> logits = recorded.Values<float>("logits");
  const auto spec =
      LoadMtpSpec(GoldenDirectory("llama-mtp"), *LoadModelSpec(GoldenDirectory("llama")));
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  HeadRig rig = LayerRig("llama", GoldenDirectory("llama-mtp"), *spec, dtype);
  ASSERT_TRUE(rig.Run(0, kRows, Wanted::kAll, tokens, features));
  const auto width = static_cast<size_t>(rig.head->logits().cols());
  const std::span<const float> want = logits;
  ExpectNear(rig.Logits(kRows), want.first(kRows * width), tolerance);
  ExpectTheSameInPieces(rig, tokens, features);
  for (int32_t step = 1; step < 3; ++step) {
    ASSERT_TRUE(rig.Run(kRows - 1 + step, 1, Wanted::kLast, tokens, {}));
    ExpectNear(rig.Logits(1), want.subspan(static_cast<size_t>(kRows - 1 + step) * width, width),
               tolerance);
  }
}

TEST(MtpHead, HasTheLogitsOfPyTorch) { ExpectGolden(DType::kF32, 2e-4f); }

TEST(MtpHead, HasTheLogitsOfPyTorchInBf16) {
  if (!CpuComputes(DType::kBF16)) GTEST_SKIP() << "this machine has no products in bf16";
  ExpectGolden(DType::kBF16, 0.15f);
}

// Latent attention and experts, with random weights.
TEST(MtpHead, IsALayerOfTheModelsKind) {
  const std::string folder = GoldenDirectory("deepseek-v3");
  Json json = Json::parse(*ReadTextFile(folder + "/config.json"));
  json["num_nextn_predict_layers"] = 1;
  const ModelSpec target = *LoadModelSpec(folder);
  const auto spec = ParseMtpSpec(json.dump(), target);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_EQ(spec->layer.prefix, fmt::format("model.layers.{}", target.layers.size()));
  EXPECT_EQ(spec->layer.attention.kind, AttentionKind::kLatent);
  EXPECT_EQ(spec->layer.mlp.kind, MlpKind::kExperts);
  HeadRig rig = LayerRig("deepseek-v3", folder, *spec, DType::kF32, 3);
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < kRows + 3; ++i) tokens.push_back((i * 37 + 5) % target.vocabulary);
  std::vector<float> features;
  for (int32_t i = 0; i < kRows * target.hidden; ++i)
    features.push_back(static_cast<float>((i * 7919) % 1000) / 500.0f - 1);
  ASSERT_TRUE(rig.Run(0, kRows, Wanted::kAll, tokens, features));
  for (const float logit : rig.Logits(kRows)) ASSERT_TRUE(std::isfinite(logit));
  ExpectTheSameInPieces(rig, tokens, features);
  ASSERT_TRUE(rig.Run(kRows, 1, Wanted::kLast, tokens, {}));
  for (const float logit : rig.Logits(1)) ASSERT_TRUE(std::isfinite(logit));
}

// A copy of the golden layer with one thing changed.
class ChangedLayer : public ChangedFolder {
 protected:
  ChangedLayer() : ChangedFolder("llama-mtp") {}
  std::string Refusal() {
    const Rig rig = Rig::Open(GoldenDirectory("llama"), {});
    const auto spec = LoadMtpSpec(folder_, rig.executor->model().spec());
    if (!spec) return spec.error().message;
    const auto head =
        MtpHead::Load(folder_, *spec, rig.executor->model(),
                      {.compute_dtype = rig.executor->model().compute_dtype(), .max_context = 64},
                      *rig.device, *rig.ops);
    return head ? "" : head.error().message;
  }
};

TEST_F(ChangedLayer, IsTakenAsItWas) { EXPECT_EQ(Refusal(), ""); }

TEST_F(ChangedLayer, OfAnotherHiddenSizeIsRefusedWithBothValues) {
  SetConfig("hidden_size", 64);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("hidden_size"), HasSubstr("64"), HasSubstr("128")));
}

TEST_F(ChangedLayer, OfAnotherVocabularyIsRefusedWithBothValues) {
  SetConfig("vocab_size", 1000);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("1000"), HasSubstr("512")));
}

TEST_F(ChangedLayer, OfACheckpointThatHasNoneIsRefused) {
  SetConfig("num_nextn_predict_layers", 0);
  EXPECT_THAT(Refusal(), HasSubstr("num_nextn_predict_layers is 0"));
}

// The next-token layer's index follows the model's last layer.
TEST_F(ChangedLayer, WithoutATensorIsRefusedByName) {
  SetConfig("num_hidden_layers", 3);
  EXPECT_THAT(Refusal(), HasSubstr("model.layers.3.enorm.weight"));
}

}  // namespace
}  // namespace aisp
