#include "speculation/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp {
namespace {

std::string Refusal(std::string_view text) {
  const auto config = ParseSpeculationConfig(text);
  EXPECT_FALSE(config.has_value()) << text;
  return config ? "" : config.error().message;
}

TEST(SpeculationConfig, ReadsTheKeysOfVllm) {
  const auto suffix =
      ParseSpeculationConfig(R"({"method": "suffix", "num_speculative_tokens": 4})");
  ASSERT_TRUE(suffix.has_value()) << suffix.error().message;
  EXPECT_EQ(suffix->method, SpeculationConfig::Method::kSuffix);
  EXPECT_EQ(suffix->num_tokens, 4);
  const auto ngram = ParseSpeculationConfig(
      R"({"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4})");
  ASSERT_TRUE(ngram.has_value());
  EXPECT_EQ(ngram->ngram.min, 2);
  EXPECT_EQ(ngram->ngram.max, 4);
  const auto draft = ParseSpeculationConfig(R"({"method": "draft_model", "model": "here"})");
  ASSERT_TRUE(draft.has_value());
  EXPECT_EQ(draft->model, "here");
  EXPECT_EQ(draft->draft_vocabulary, 0);
  const auto part = ParseSpeculationConfig(
      R"({"method": "draft_model", "model": "here", "draft_vocab_size": 2048})");
  ASSERT_TRUE(part.has_value());
  EXPECT_EQ(part->draft_vocabulary, 2048);
  const auto medusa = ParseSpeculationConfig(R"({"method": "medusa", "model": "heads"})");
  ASSERT_TRUE(medusa.has_value());
  EXPECT_EQ(medusa->model, "heads");
  EXPECT_FALSE(medusa->says_num_tokens);
  const auto mtp = ParseSpeculationConfig(R"({"method": "mtp", "num_speculative_tokens": 2})");
  ASSERT_TRUE(mtp.has_value());
  EXPECT_EQ(mtp->model, "");  // the target checkpoint's own layer
  EXPECT_TRUE(mtp->says_num_tokens);
  EXPECT_EQ(mtp->prompt_features, SpeculationConfig::kPromptFeatures);
  const auto none = ParseSpeculationConfig(R"({"method": "mtp", "prompt_features": 0})");
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->prompt_features, 0);
  EXPECT_EQ(none->quantization, "");
  const auto small =
      ParseSpeculationConfig(R"({"method": "eagle3", "model": "head", "quantization": "nvfp4"})");
  ASSERT_TRUE(small.has_value());
  EXPECT_EQ(small->quantization, "nvfp4");
  EXPECT_EQ(ParseSpeculationConfig("off")->method, SpeculationConfig::Method::kOff);
}

TEST(SpeculationConfig, OneLookupLengthStandsForBoth) {
  const auto config = ParseSpeculationConfig(R"({"method": "ngram", "prompt_lookup_max": 3})");
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(config->ngram.min, 3);
  EXPECT_EQ(config->ngram.max, 3);
}

TEST(SpeculationConfig, RefusalsNameTheValueAndWhatIsAllowed) {
  using testing::HasSubstr;
  EXPECT_THAT(Refusal(R"({"method": "eagle9"})"), HasSubstr("\"eagle9\""));
  EXPECT_THAT(Refusal(R"({"method": "suffix", "num_speculative_tokens": 33})"),
              testing::AllOf(HasSubstr("33"), HasSubstr("1 to 32")));
  EXPECT_THAT(Refusal(R"({"method": "suffix", "num_speculative_tokens": 0})"), HasSubstr("is 0"));
  EXPECT_THAT(Refusal(R"({"method": "suffix", "prompt_lookup_min": 2})"),
              testing::AllOf(HasSubstr("no key 'prompt_lookup_min'"),
                             HasSubstr("suffix_decoding_max_spec_factor")));
  EXPECT_THAT(Refusal(R"({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 2})"),
              testing::AllOf(HasSubstr("4"), HasSubstr("2")));
  EXPECT_THAT(Refusal(R"({"method": "suffix", "prompt_features": 9})"),
              HasSubstr("no key 'prompt_features'"));
  EXPECT_THAT(Refusal(R"({"method": "mtp", "prompt_features": 5000})"),
              testing::AllOf(HasSubstr("5000"), HasSubstr("0 to 4096")));
  EXPECT_THAT(Refusal(R"({"method": "mtp", "quantization": "int4"})"),
              testing::AllOf(HasSubstr("\"int4\""), HasSubstr("\"nvfp4\"")));
  EXPECT_THAT(Refusal(R"({"method": "suffix", "quantization": "fp8"})"),
              HasSubstr("no key 'quantization'"));
  EXPECT_THAT(Refusal(R"({"method": "eagle3", "model": "head", "draft_vocab_size": 9})"),
              HasSubstr("no key 'draft_vocab_size'"));
  EXPECT_THAT(Refusal(R"({"method": "draft_model", "model": "x", "draft_vocab_size": 0})"),
              HasSubstr("draft_vocab_size is 0"));
  EXPECT_THAT(Refusal(R"({"method": "draft_model"})"), HasSubstr("'model'"));
  EXPECT_THAT(Refusal(R"({"method": "eagle3"})"), HasSubstr("'model'"));
  EXPECT_THAT(Refusal(R"({"method": "medusa"})"), HasSubstr("'model'"));
  EXPECT_THAT(Refusal(R"({"num_speculative_tokens": 3})"), HasSubstr("no method"));
  EXPECT_THAT(Refusal("suffix"), HasSubstr("JSON object"));
  EXPECT_THAT(Refusal(R"({"method": "suffix", "num_speculative_tokens": 1e99})"),
              HasSubstr("1 to 32"));
}

}  // namespace
}  // namespace aisp
