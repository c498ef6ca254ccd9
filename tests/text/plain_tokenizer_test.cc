#include "text/plain_tokenizer.h"

#include <gmock/gmock.h>

#include "common/random.h"

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PlainTokenizer, IdsAndTextAreEachOthersInverse) {
  const auto tokenizer = MakePlainTokenizer(128256);
  ASSERT_TRUE(tokenizer);
  EXPECT_EQ((*tokenizer)->VocabSize(), 128256);
  SplitMix64 random(3);
  std::vector<TokenId> ids;
  // Bytes below 128 and tokens above the byte range: any sequence of them is valid UTF-8.
  for (int i = 0; i < 2000; ++i) {
    const auto id = static_cast<TokenId>(random.Below(128256));
    ids.push_back(id >= 128 && id < 256 ? id - 128 : id);
  }
  const std::string text = (*tokenizer)->Decode(ids, /*skip_special=*/true);
  const auto again = (*tokenizer)->Encode(text);
  ASSERT_TRUE(again);
  EXPECT_EQ(*again, ids);
}

TEST(PlainTokenizer, TextIsItsBytes) {
  const auto tokenizer = MakePlainTokenizer(1000);
  ASSERT_TRUE(tokenizer);
  EXPECT_THAT(*(*tokenizer)->Encode("a\xC3\xA9<|999|>"), ElementsAre('a', 0xC3, 0xA9, 999));
  for (const std::string text : {"", "Grüße, 世界 🦆\n", "<|1000|> <|12|>"}) {
    EXPECT_EQ((*tokenizer)->Decode(*(*tokenizer)->Encode(text), true), text);
  }
  // Half of a character is kept as it is: invalid.
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>{0xC3}, true), "\xEF\xBF\xBD");
}

TEST(PlainTokenizer, AVocabularyWithoutRoomForTheBytesIsRefused) {
  const auto refused = MakePlainTokenizer(255);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("255"));
}

}  // namespace
}  // namespace aisp
