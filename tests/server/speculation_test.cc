#include "server/speculation.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace aisp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Config StoryConfig(const std::string& speculative) {
  Config config;
  config.model.path = AISP_SOURCE_DIR "/models/story-7m";
  config.model.device = "cpu";
  config.engine.kv_blocks = 300;
  config.engine.speculative_config = speculative;
  return config;
}

Result<std::shared_ptr<Speculator>> Start(const Config& config) {
  static const SteadyClock clock;
  AISP_ASSIGN_OR_RETURN(const auto served, LoadServedModel(config));
  AISP_ASSIGN_OR_RETURN(const Backend backend, MakeBackend(config, *served));
  return MakeSpeculator(config, *served, backend, &clock);
}

TEST(MakeSpeculator, LoadsADraftModelThatStandsBesideTheServedOne) {
  const auto made = Start(StoryConfig(R"({"method": "draft_model", "model": "story-draft-1m"})"));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ((*made)->method(), "draft_model");
}

TEST(MakeSpeculator, RefusesADraftOfAnotherVocabularyWithBothValues) {
  const auto made = Start(StoryConfig(R"({"method": "draft_model", "model": ")" AISP_SOURCE_DIR
                                      R"(/tests/data/goldens/llama"})"));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kInvalidArgument);
  EXPECT_THAT(made.error().message, AllOf(HasSubstr("512"), HasSubstr("4096")));
}

TEST(MakeSpeculator, RefusesADraftOfAnotherTokenizerWithBothValues) {
  const auto served = LoadServedModel(StoryConfig("off"));
  ASSERT_TRUE(served) << served.error().message;
  const std::string own = (*served)->tokenizer->Fingerprint();
  EXPECT_TRUE(CheckDraftModel("d", 4096, own, **served));
  const Status other = CheckDraftModel("d", 4096, "abcdef", **served);
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, AllOf(HasSubstr("abcdef"), HasSubstr(own)));
  const Status none = CheckDraftModel("d", 4096, "", **served);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("none"));
}

TEST(MakeSpeculator, LoadsAHeadThatStandsBesideTheServedModel) {
  const auto made = Start(StoryConfig(R"({"method": "eagle3", "model": "story-7m-eagle3"})"));
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ((*made)->method(), "eagle3");
  EXPECT_EQ((*made)->feature_size(), 3 * 256);
}

TEST(MakeSpeculator, RefusesAHeadOfAnotherModelWithBothValues) {
  const auto made = Start(StoryConfig(R"({"method": "eagle3", "model": ")" AISP_SOURCE_DIR
                                      R"(/tests/data/goldens/llama-eagle3"})"));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kInvalidArgument);
  EXPECT_THAT(made.error().message,
              AllOf(HasSubstr("hidden_size"), HasSubstr("128"), HasSubstr("256")));
}

TEST(MakeSpeculator, LoadsMedusaHeadsAndANextTokenLayer) {
  const auto medusa = Start(StoryConfig(R"({"method": "medusa", "model": "story-7m-medusa"})"));
  ASSERT_TRUE(medusa) << medusa.error().message;
  EXPECT_EQ((*medusa)->method(), "medusa");
  EXPECT_EQ((*medusa)->feature_size(), 256);
  const auto mtp = Start(StoryConfig(R"({"method": "mtp", "model": "story-7m-mtp"})"));
  ASSERT_TRUE(mtp) << mtp.error().message;
  EXPECT_EQ((*mtp)->method(), "mtp");
  EXPECT_EQ((*mtp)->feature_size(), 256);
}

TEST(MakeSpeculator, RefusesMoreTokensThanMedusaHasHeadsWithBothValues) {
  const auto made = Start(StoryConfig(
      R"({"method": "medusa", "model": "story-7m-medusa", "num_speculative_tokens": 5})"));
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, Code::kInvalidArgument);
  EXPECT_THAT(made.error().message, AllOf(HasSubstr("is 5"), HasSubstr("4 heads")));
}

TEST(MakeSpeculator, RefusesHeadsAndLayersOfAnotherModelWithBothValues) {
  for (const std::string method : {"medusa", "mtp"}) {
    const auto made = Start(StoryConfig(
        fmt::format(R"({{"method": "{0}", "model": "{1}/tests/data/goldens/llama-{0}"}})", method,
                    AISP_SOURCE_DIR)));
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, Code::kInvalidArgument);
    EXPECT_THAT(made.error().message,
                AllOf(StartsWith("speculative_config: "), HasSubstr("hidden_size"),
                      HasSubstr("128"), HasSubstr("256")));
  }
}

TEST(MakeSpeculator, RefusesMtpOfACheckpointWithoutANextTokenLayer) {
  const auto made = Start(StoryConfig(R"({"method": "mtp"})"));
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message,
              AllOf(HasSubstr("models/story-7m"), HasSubstr("num_nextn_predict_layers is 0")));
}

// Before weights are read: MakeBackend checks this first, with the device that it opened.
TEST(DraftNeeds, OfHeadsOnAGpuAreTheirLayersAndTheirMemory) {
  DeviceInfo gpu;
  gpu.kind = "cuda";
  gpu.asynchronous = true;
  // Medusa's heads have no KV.
  struct Case {
    std::string method;
    size_t layers;
    uint64_t kv_layers;
  };
  for (const auto& [method, layers, kv_layers] :
       {Case{"eagle3", 3, 1}, Case{"mtp", 1, 1}, Case{"medusa", 1, 0}}) {
    const Config config =
        StoryConfig(fmt::format(R"({{"method": "{0}", "model": "story-7m-{0}"}})", method));
    const auto served = LoadServedModel(config);
    ASSERT_TRUE(served) << served.error().message;
    const auto needs = DraftNeedsOf(config, **served, gpu);
    ASSERT_TRUE(needs) << method << ": " << needs.error().message;
    EXPECT_EQ(needs->feature_layers.size(), layers) << method;
    EXPECT_GT(needs->memory.fixed_bytes, uint64_t{512} << 20) << method;
    EXPECT_EQ(needs->memory.block_bytes * 8, kv_layers * (*served)->kv_layout.BlockBytes())
        << method;
    const auto on_cpu = DraftNeedsOf(config, **served, DeviceInfo{});
    ASSERT_TRUE(on_cpu) << on_cpu.error().message;
    EXPECT_EQ(on_cpu->memory.fixed_bytes, 0u) << method;
  }
}

TEST(MakeSpeculator, TellsWhatADraftModelTakesOfAGpu) {
  Config config;
  config.model.path = AISP_SOURCE_DIR "/config/models/llama-3.1-8b.json";
  config.model.weights = "random:1";
  config.engine.block_tokens = 64;
  config.engine.speculative_config = R"({"method": "draft_model", "model": "llama-3.2-1b"})";
  const auto served = LoadServedModel(config);
  ASSERT_TRUE(served) << served.error().message;
  const auto draft = DraftMemoryOf(config, **served);
  ASSERT_TRUE(draft) << draft.error().message;
  EXPECT_EQ(draft->block_bytes * 4,
            (*served)->kv_layout.BlockBytes());  // 16 layers of 64, not 32 of 128
  EXPECT_GT(draft->fixed_bytes, uint64_t{2'400'000'000});
  config.engine.speculative_config = R"({"method": "eagle3", "model": "llama-3.1-8b-eagle3"})";
  const auto head = DraftMemoryOf(config, **served);
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(head->block_bytes * 32, (*served)->kv_layout.BlockBytes());  // one layer of 32
  EXPECT_GT(head->fixed_bytes, uint64_t{1'400'000'000});
  config.engine.speculative_config = R"({"method": "suffix"})";
  const auto none = DraftMemoryOf(config, **served);
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_EQ(none->fixed_bytes + none->block_bytes, 0u);
}

TEST(MakeSpeculator, DraftsFromAPartOfTheVocabulary) {
  const auto with = [](int size) {
    return Start(StoryConfig(fmt::format(
        R"({{"method": "draft_model", "model": "story-draft-1m", "draft_vocab_size": {}}})",
        size)));
  };
  const auto made = with(1024);
  ASSERT_TRUE(made) << made.error().message;
  const auto refused = with(4097);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  EXPECT_THAT(refused.error().message,
              AllOf(HasSubstr("draft_vocab_size is 4097"), HasSubstr("4096")));
}

TEST(MakeSpeculator, NamesTheSettingWhoseCheckpointDoesNotLoad) {
  for (const std::string method : {"draft_model", "eagle3", "medusa", "mtp"}) {
    const auto made =
        Start(StoryConfig(fmt::format(R"({{"method": "{}", "model": "/tmp"}})", method)));
    ASSERT_FALSE(made);
    EXPECT_THAT(made.error().message,
                AllOf(StartsWith("speculative_config: "), HasSubstr("/tmp/config.json")));
  }
}

TEST(MakeSpeculator, NamesADraftThatIsNotThere) {
  for (const char* method : {"draft_model", "eagle3", "medusa", "mtp"}) {
    const auto made =
        Start(StoryConfig(fmt::format(R"({{"method": "{}", "model": "no-such-model"}})", method)));
    ASSERT_FALSE(made) << method;
    EXPECT_THAT(made.error().message,
                AllOf(HasSubstr("speculative_config: the model 'no-such-model'"),
                      HasSubstr("beside '" AISP_SOURCE_DIR "/models/story-7m'")));
  }
}

}  // namespace
}  // namespace aisp
