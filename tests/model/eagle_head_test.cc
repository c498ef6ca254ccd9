// An EAGLE-3 head: its logits equal PyTorch's (tools/train/eagle3.py), and which files are refused.
#include "model/eagle_head.h"

#include <gmock/gmock.h>

#include <cstring>

#include "model/files.h"
#include "model/json_reader.h"
#include "tests/model/golden.h"
#include "tests/model/head_rig.h"
#include "tests/model/recorded.h"

namespace aisp {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelSpec Target() {
  auto spec = LoadModelSpec(GoldenDirectory("llama"));
  EXPECT_TRUE(spec.has_value());
  return *spec;
}

HeadRig GoldenHead(DType dtype) {
  const std::string folder = GoldenDirectory("llama-eagle3");
  return HeadRig(
      GoldenDirectory("llama"), dtype, [&](const Model& target, Device& device, Ops& ops) {
        return EagleHead::Load(folder, *LoadEagleSpec(folder, target.spec()), target.embedding(),
                               {.compute_dtype = dtype, .max_rows = 32, .max_sequences = 24},
                               device, ops);
      });
}

// All rows of the target's features, then three of the head's own, which continue after the last
// one.
void ExpectGolden(DType dtype, float tolerance) {
  const Recorded recorded("llama-eagle3");
  const std::vector<int64_t> ids = recorded.Values<int64_t>("tokens");
  const std::vector<TokenId> tokens(ids.begin(), ids.end());
  const std::vector<float> features = recorded.Values<float>("features");
  const std::vector<float> logits = recorded.Values<float>("logits");
  HeadRig rig = GoldenHead(dtype);
  constexpr int32_t kRows = 21;
  ASSERT_EQ(features.size(), static_cast<size_t>(kRows * rig.head->feature_size()));
  ASSERT_TRUE(rig.Run(0, kRows, Wanted::kAll, tokens, features));
  const auto width = static_cast<size_t>(rig.head->logits().cols());
  const std::span<const float> want = logits;
  ExpectNear(rig.Logits(kRows), want.first(kRows * width), tolerance);
  // Computed in pieces, the last row is the same, bit for bit.
  const std::vector<float> whole = rig.Logits(kRows);
  std::memset(rig.pool.data(), 0xff, rig.pool.bytes());
  ASSERT_TRUE(rig.Run(0, 10, Wanted::kNone, tokens, features));
  ASSERT_TRUE(rig.Run(10, 3, Wanted::kLast, tokens, features));
  ASSERT_TRUE(rig.Run(13, 8, Wanted::kLast, tokens, features));
  EXPECT_EQ(rig.Logits(1),
            std::vector<float>(whole.end() - static_cast<ptrdiff_t>(width), whole.end()));
  for (int32_t step = 1; step < 3; ++step) {
    ASSERT_TRUE(rig.Run(kRows - 1 + step, 1, Wanted::kLast, tokens, {}));
    ExpectNear(rig.Logits(1), want.subspan(static_cast<size_t>(kRows - 1 + step) * width, width),
               tolerance);
  }
}

TEST(EagleHead, HasTheLogitsOfPyTorch) { ExpectGolden(DType::kF32, 2e-4f); }

TEST(EagleHead, HasTheLogitsOfPyTorchInBf16) {
  if (!CpuComputes(DType::kBF16)) GTEST_SKIP() << "this machine has no products in bf16";
  ExpectGolden(DType::kBF16, 0.15f);
}

TEST(EagleSpec, ReadsThreeLayersWhereTheConfigNamesNone) {
  ModelSpec target = Target();
  target.layers.resize(32, target.layers.front());
  const std::string config = R"({"hidden_size": 128, "intermediate_size": 64, "vocab_size": 512,
      "num_hidden_layers": 1, "num_attention_heads": 4, "max_position_embeddings": 64)";
  const auto spec = ParseEagleSpec(config + "}", target);
  ASSERT_TRUE(spec.has_value()) << spec.error().message;
  EXPECT_THAT(spec->feature_layers, ElementsAre(2, 16, 29));
  EXPECT_EQ(spec->draft_vocabulary, 512);
  const auto named = ParseEagleSpec(
      config + R"(, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 32]}})", target);
  ASSERT_TRUE(named.has_value()) << named.error().message;
  EXPECT_THAT(named->feature_layers, ElementsAre(1, 32));
}

TEST(EagleSpec, HeadsOfAnotherMethodAreNamed) {
  const auto spec = ParseEagleSpec(R"({"medusa_num_heads": 4, "hidden_size": 128})", Target());
  ASSERT_FALSE(spec.has_value());
  EXPECT_THAT(spec.error().message, testing::HasSubstr("Medusa heads"));
}

// A copy of the golden head with one thing changed.
class ChangedHead : public ChangedFolder {
 protected:
  ChangedHead() : ChangedFolder("llama-eagle3") {}
  std::string Refusal() {
    const auto spec = LoadEagleSpec(folder_, Target());
    if (!spec) return spec.error().message;
    const Rig rig = Rig::Open(GoldenDirectory("llama"), {});
    const auto head = EagleHead::Load(folder_, *spec, rig.executor->model().embedding(), {},
                                      *rig.device, *rig.ops);
    return head ? "" : head.error().message;
  }
};

TEST_F(ChangedHead, IsTakenAsItWas) { EXPECT_EQ(Refusal(), ""); }

TEST_F(ChangedHead, OfAnotherHiddenSizeIsRefusedWithBothValues) {
  SetConfig("target_hidden_size", 256);
  EXPECT_THAT(Refusal(),
              AllOf(HasSubstr("target_hidden_size"), HasSubstr("256"), HasSubstr("128")));
  SetConfig("hidden_size", 64);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("hidden_size"), HasSubstr("64"), HasSubstr("128")));
}

TEST_F(ChangedHead, OfAnotherVocabularyIsRefusedWithBothValues) {
  SetConfig("vocab_size", 1000);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("1000"), HasSubstr("512")));
}

TEST_F(ChangedHead, ThatReadsALayerBeyondTheTargetsIsRefused) {
  SetConfig("eagle_aux_hidden_state_layer_ids", Json::array({0, 1, 3}));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("3"), HasSubstr("2 layers")));
}

TEST_F(ChangedHead, WithAMapOutOfTheVocabularyIsRefused) {
  const int64_t far = 512 - 7;
  Write(Place("d2t") + 7 * sizeof(far),
        std::string_view(reinterpret_cast<const char*>(&far), sizeof(far)));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("d2t[7]"), HasSubstr("505"), HasSubstr("512")));
  const int64_t below = -8;
  Write(Place("d2t") + 7 * sizeof(below),
        std::string_view(reinterpret_cast<const char*>(&below), sizeof(below)));
  EXPECT_THAT(Refusal(), HasSubstr("d2t[7]"));
}

TEST_F(ChangedHead, WithoutATensorIsRefusedByName) {
  for (const std::string tensor : {"midlayer.hidden_norm.weight", "fc.weight", "d2t"}) {
    const std::string text = *ReadTextFile(folder_ + "/model.safetensors");
    const size_t at = text.find("\"" + tensor + "\"");
    ASSERT_NE(at, std::string::npos);
    Write(at + 1, "X");
    EXPECT_THAT(Refusal(), HasSubstr(tensor));
    Write(at + 1, tensor.substr(0, 1));
  }
  SetConfig("draft_vocab_size", 100);
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("d2t"), HasSubstr("128"), HasSubstr("100")));
}

}  // namespace
}  // namespace aisp
