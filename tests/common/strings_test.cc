#include "common/strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace aisp {
namespace {

using ::testing::ElementsAre;

TEST(Split, KeepsEmptyParts) {
  EXPECT_THAT(Split("a,,b", ','), ElementsAre("a", "", "b"));
  EXPECT_THAT(Split("", ','), ElementsAre(""));
  EXPECT_THAT(Split("a,", ','), ElementsAre("a", ""));
}

TEST(Trim, TakesSpacesFromBothEndsOnly) {
  EXPECT_EQ(Trim(" \ta b\r\n"), "a b");
  EXPECT_EQ(Trim(" \n"), "");
}

TEST(Join, PutsTheSeparatorBetween) {
  EXPECT_EQ(Join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(Join({}, ", "), "");
}

TEST(Case, FoldsAsciiOnly) {
  EXPECT_EQ(ToLowerAscii("Content-TYPE \xC3\x84"), "content-type \xC3\x84");
  EXPECT_TRUE(EqualsIgnoreCaseAscii("Bearer", "bEARER"));
  EXPECT_FALSE(EqualsIgnoreCaseAscii("Bearer", "Bearer "));
}

TEST(ParseInt, TakesTheWholeTextOrNothing) {
  EXPECT_EQ(ParseInt("-42").value(), -42);
  EXPECT_EQ(ParseInt("9223372036854775807").value(), INT64_MAX);
  for (const char* bad : {"", " 1", "1 ", "+1", "1.0", "0x10", "1e3", "--1", "abc"}) {
    ASSERT_FALSE(ParseInt(bad)) << bad;
    EXPECT_EQ(ParseInt(bad).error().code, Code::kInvalidArgument) << bad;
  }
  EXPECT_EQ(ParseInt("9223372036854775808").error().code, Code::kOutOfRange);
}

TEST(ParseInt, NamesValueAndLimits) {
  EXPECT_EQ(ParseIntInRange("8", 1, 8).value(), 8);
  EXPECT_EQ(ParseIntInRange("9", 1, 8).error().message, "9 is outside 1..8");
}

TEST(ParseDouble, TakesFiniteDecimalsOnly) {
  EXPECT_EQ(ParseDouble("0.5").value(), 0.5);
  EXPECT_EQ(ParseDouble("-1e-3").value(), -1e-3);
  for (const char* bad : {"", " 1", "1,5", "nan", "inf", "-inf", "0x1p3", "1.5x"})
    EXPECT_FALSE(ParseDouble(bad)) << bad;
  EXPECT_EQ(ParseDouble("1e999").error().code, Code::kOutOfRange);
}

TEST(ParseBool, TakesTwoWords) {
  EXPECT_TRUE(ParseBool("true").value());
  EXPECT_FALSE(ParseBool("false").value());
  EXPECT_FALSE(ParseBool("True"));
  EXPECT_FALSE(ParseBool("1"));
}

TEST(ParseBytes, KnowsBinaryAndDecimalUnits) {
  EXPECT_EQ(ParseBytes("4096").value(), 4096u);
  EXPECT_EQ(ParseBytes("64KiB").value(), 65536u);
  EXPECT_EQ(ParseBytes("1.5 GiB").value(), 3ull << 29);
  EXPECT_EQ(ParseBytes("2MB").value(), 2'000'000u);
  for (const char* bad : {"", "GiB", "1 XB", "-1", "1..5MB", "1kib"})
    EXPECT_FALSE(ParseBytes(bad)) << bad;
  EXPECT_EQ(ParseBytes("99999999TiB").error().code, Code::kOutOfRange);
}

TEST(HumanBytes, PicksTheUnitThatReadsBest) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(1023), "1023 B");
  EXPECT_EQ(HumanBytes(65536), "64 KiB");
  EXPECT_EQ(HumanBytes(3ull << 29), "1.5 GiB");
  EXPECT_EQ(HumanBytes(UINT64_MAX), "16 EiB");
}

TEST(Utf8, AcceptsEveryLengthAtItsLimits) {
  for (const char* good :
       {"", "ascii only, longer than eight bytes", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80",
        "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsValidUtf8(good)) << Excerpt(good);
  }
  EXPECT_TRUE(IsValidUtf8(std::string_view("a\0b", 3)));
}

TEST(Utf8, RejectsOverlongSurrogateTooHighCutAndStrayBytes) {
  for (const char* bad :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2 ", "\xE0\x9F\xBF", "\xED\xA0\x80",
        "\xE2\x82", "\xE2\x82 ", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF",
        "12345678\xC2", "1234567\xFF"}) {
    EXPECT_FALSE(IsValidUtf8(bad)) << Excerpt(bad);
  }
}

// Against the definition: encode every code point, and compare a decoder-free count of all two-byte
// strings.
TEST(Utf8, AgreesWithTheDefinitionOnAllCodePointsAndAllPairsOfBytes) {
  for (uint32_t point = 0; point <= 0x10FFFF; ++point) {
    std::string encoded;
    const auto push = [&](uint32_t byte) { encoded.push_back(static_cast<char>(byte)); };
    if (point < 0x80) {
      push(point);
    } else if (point < 0x800) {
      push(0xC0 | point >> 6);
      push(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
      push(0xE0 | point >> 12);
      push(0x80 | (point >> 6 & 0x3F));
      push(0x80 | (point & 0x3F));
    } else {
      push(0xF0 | point >> 18);
      push(0x80 | (point >> 12 & 0x3F));
      push(0x80 | (point >> 6 & 0x3F));
      push(0x80 | (point & 0x3F));
    }
    const bool surrogate = point >= 0xD800 && point <= 0xDFFF;
    ASSERT_EQ(IsValidUtf8(encoded), !surrogate) << std::hex << point;
  }
  int valid_pairs = 0;
  for (int pair = 0; pair < 65536; ++pair) {
    const char bytes[] = {static_cast<char>(pair >> 8), static_cast<char>(pair & 0xFF)};
    valid_pairs += IsValidUtf8({bytes, 2});
  }
  EXPECT_EQ(valid_pairs, 128 * 128 + (0x800 - 0x80));
}

TEST(Utf8, FindsTheLongestWellFormedPrefix) {
  EXPECT_EQ(ValidUtf8Prefix("abc\xE2\x82\xAC"), 6u);
  EXPECT_EQ(ValidUtf8Prefix("abc\xE2\x82"), 3u);
}

TEST(Excerpt, CutsAndEscapesUntrustedText) {
  EXPECT_EQ(Excerpt("plain \xE2\x82\xAC"), "plain \xE2\x82\xAC");
  EXPECT_EQ(Excerpt("a\n\x1B[31m\xFF"), "a\\x0A\\x1B[31m\\xFF");
  EXPECT_EQ(Excerpt("abcdef", 3), "abc...");
  EXPECT_EQ(Excerpt("ab\xE2\x82\xAC", 4), "ab...");  // never half a character
}

}  // namespace
}  // namespace aisp
