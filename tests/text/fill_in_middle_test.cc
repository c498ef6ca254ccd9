#include "text/fill_in_middle.h"

#include <gmock/gmock.h>

#include "tests/text/fixtures.h"

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The tiny tokenizer with these control tokens, from id 20 on.
std::unique_ptr<Tokenizer> With(const std::vector<std::string>& markers, bool bos = false) {
  testing::Json file = testing::TinyTokenizer();
  if (!bos) file["post_processor"] = nullptr;
  int id = 20;
  for (const std::string& marker : markers) {
    file["added_tokens"].push_back(
        {{"id", id++}, {"content", marker}, {"special", true}, {"normalized", false}});
  }
  const TempFolder folder;
  folder.Write("tokenizer.json", file.dump());
  if (bos) folder.Write("tokenizer_config.json", R"({"bos_token": "<|end|>"})");
  auto tokenizer = Tokenizer::Load(folder.path());
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return tokenizer ? std::move(*tokenizer) : nullptr;
}

std::vector<TokenId> Middle(const Tokenizer& tokenizer, std::string_view prompt,
                            std::string_view suffix) {
  const FillInMiddle* format = FindFillInMiddle(tokenizer);
  EXPECT_NE(format, nullptr);
  if (format == nullptr) return {};
  const auto tokens = EncodeFillInMiddle(tokenizer, *format, prompt, suffix);
  EXPECT_TRUE(tokens) << tokens.error().message;
  return tokens.value_or(std::vector<TokenId>());
}

TEST(FillInMiddle, EachFamilyAsksInItsOwnOrder) {
  EXPECT_THAT(Middle(*With({"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"}), "abc", "c"),
              ElementsAre(20, 5, 21, 2, 22));
  EXPECT_THAT(Middle(*With({"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}), "abc", "c"),
              ElementsAre(20, 5, 21, 2, 22));
  EXPECT_THAT(Middle(*With({"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"}), "abc", "c"),
              ElementsAre(20, 5, 21, 2, 22));
  EXPECT_THAT(Middle(*With({"▁<PRE>", "▁<SUF>", "▁<MID>"}), "abc", "c"),
              ElementsAre(20, 5, 21, 2, 22));
  EXPECT_THAT(Middle(*With({"[SUFFIX]", "[PREFIX]"}), "abc", "c"), ElementsAre(20, 2, 21, 5));
}

TEST(FillInMiddle, AnEmptyPromptIsNothingBetweenTheMarkers) {
  EXPECT_THAT(Middle(*With({"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}), "", "c"),
              ElementsAre(20, 21, 2, 22));
}

TEST(FillInMiddle, WhatGoesBeforeEveryTextGoesBeforeThisOneToo) {
  EXPECT_THAT(
      Middle(*With({"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}, /*bos=*/true), "a", "b"),
      ElementsAre(10, 20, 0, 21, 1, 22));
}

TEST(FillInMiddle, ATokenizerWithoutAllOfAFamilysTokensHasNone) {
  EXPECT_EQ(FindFillInMiddle(*With({})), nullptr);
  EXPECT_EQ(FindFillInMiddle(*With({"<fim_prefix>", "<fim_suffix>"})), nullptr);
  EXPECT_THAT(FillInMiddleNames(), HasSubstr("Codestral"));
}

TEST(FillInMiddle, AControlTokenInAPartIsRefusedByName) {
  const auto tokenizer = With({"<fim_prefix>", "<fim_suffix>", "<fim_middle>"});
  const FillInMiddle& format = *FindFillInMiddle(*tokenizer);
  for (const auto& [prompt, suffix] : {std::pair("a<fim_suffix>b", "c"), {"a", "<fim_suffix>"}}) {
    const auto refused = EncodeFillInMiddle(*tokenizer, format, prompt, suffix);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("<fim_suffix>"));
  }
}

TEST(FillInMiddle, TheEndIsWhereTheFamilyStops) {
  const auto tokenizer =
      With({"<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<|endoftext|>", "<file_sep>"});
  EXPECT_THAT(EndsOfMiddle(*tokenizer, *FindFillInMiddle(*tokenizer)), ElementsAre(23, 24));
}

}  // namespace
}  // namespace aisp
