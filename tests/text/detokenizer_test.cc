#include "text/detokenizer.h"

#include <random>

#include <gtest/gtest.h>

#include "common/strings.h"
#include "tests/text/fixtures.h"

namespace aisp {
namespace {

std::unique_ptr<Tokenizer> Tiny() {
  TempFolder folder;
  folder.Write("tokenizer.json", testing::TinyTokenizer().dump());
  auto t = Tokenizer::Load(folder.path());
  EXPECT_TRUE(t.has_value());
  return *std::move(t);
}

TEST(Detokenizer, HoldsACharacterBackUntilItIsWhole) {
  const auto t = Tiny();
  Detokenizer d(*t, true);
  EXPECT_EQ(d.Push(8), "");  // the first byte of é
  EXPECT_TRUE(d.HoldsBack());
  EXPECT_EQ(d.Push(9), "é");
  EXPECT_FALSE(d.HoldsBack());
  EXPECT_EQ(d.Flush(), "");
}

TEST(Detokenizer, FlushReplacesWhatNeverBecameWhole) {
  const auto t = Tiny();
  Detokenizer d(*t, true);
  EXPECT_EQ(d.Push(8), "");
  EXPECT_EQ(d.Push(0), "\uFFFDa");
  EXPECT_EQ(d.Push(8), "");
  EXPECT_EQ(d.Flush(), "\uFFFD");
}

TEST(Detokenizer, SkippedControlTokensDoNotBreakACharacter) {
  const auto t = Tiny();
  Detokenizer skip(*t, true), keep(*t, false);
  std::string skipped, kept;
  for (const TokenId id : {8, 10, 9}) {
    skip.Push(id, &skipped);
    keep.Push(id, &kept);
  }
  EXPECT_EQ(skipped, "é");
  EXPECT_EQ(kept, "\uFFFD<|end|>\uFFFD");
}

TEST(Detokenizer, StreamsExactlyWhatDecodeGivesForRandomTokens) {
  const auto t = Tokenizer::Load(std::string(AISP_SOURCE_DIR) + "/models/story-7m");
  ASSERT_TRUE(t) << t.error().message;
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids;
    // Low ids are single bytes, which gives many broken and split characters.
    const auto bound = static_cast<uint32_t>(round % 2 == 0 ? 263 : (*t)->VocabSize() + 5);
    for (uint32_t i = 0; i < random() % 60; ++i)
      ids.push_back(static_cast<TokenId>(random() % bound));
    const bool skip = random() % 2 == 0;
    Detokenizer d(**t, skip);
    std::string streamed;
    for (const TokenId id : ids) {
      const std::string piece = d.Push(id);
      EXPECT_TRUE(IsValidUtf8(piece));
      streamed += piece;
    }
    streamed += d.Flush();
    EXPECT_EQ(streamed, (*t)->Decode(ids, skip));
  }
}

}  // namespace
}  // namespace aisp
