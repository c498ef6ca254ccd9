// Endings: at any point of a text, the suggested ending completes it.
#include <gtest/gtest.h>

#include <random>

#include "constrain/text_constraint.h"
#include "tests/constrain/mask_harness.h"

namespace aisp {
namespace {

std::string TextOf(const std::vector<TokenId>& tokens) {
  std::string out;
  for (const TokenId id : tokens) out += PieceOf(id);
  return out;
}

// The known ending after the text so far; "-" if there is none.
std::string EndingAfter(std::string_view schema, std::string_view text) {
  const auto constraint = Compile(schema, Pieces());
  const auto matcher = constraint->NewMatcher();
  EXPECT_EQ(matcher->AdvanceBytes(text), text.size()) << text;
  const auto ending = matcher->FindEnding(4096);
  return ending ? TextOf(ending->tokens) : "-";
}

TEST(Endings, WhatIsOpenIsClosedAndWhatIsRequiredIsAdded) {
  const std::string schema =
      R"({"type": "object", "properties": {"name": {"type": "string", "minLength": 3},
          "age": {"type": "integer", "minimum": 120}, "note": {"type": "string"}},
          "required": ["name", "age"], "additionalProperties": false})";
  EXPECT_EQ(EndingAfter(schema, ""), R"({"age":120,"name":"aaa"})");
  EXPECT_EQ(EndingAfter(schema, R"({"no)"), R"(te":"","age":120,"name":"aaa"})");
  EXPECT_EQ(EndingAfter(schema, R"({"name": "x)"), R"(aa","age":120})");
  EXPECT_EQ(EndingAfter(schema, R"({"age": 1)"), R"(20,"name":"aaa"})");
  EXPECT_EQ(EndingAfter(schema, R"({"age": 120, "name": "abcd"})"), "");
  EXPECT_EQ(EndingAfter(schema, R"({"age": 120, "name": "ab\)"), R"(n"})");
}

TEST(Endings, ArraysPatternsAndReferencesEnd) {
  EXPECT_EQ(EndingAfter(R"({"type": "array", "items": {"const": "x"}, "minItems": 2})", R"(["x")"),
            R"(,"x"])");
  EXPECT_EQ(EndingAfter(R"({"type": "string", "pattern": "^[0-9]{4}-[a-f]{2}$"})", "\"12"),
            "00-aa\"");
  EXPECT_EQ(EndingAfter(R"({"contains": {"const": 7}, "type": "array"})", "[1"), ",7]");
  EXPECT_EQ(EndingAfter(R"({"$defs": {"n": {"type": "object", "properties": {"next": {
                "$ref": "#/$defs/n"}, "v": {"type": "null"}}, "required": ["v"],
                "additionalProperties": false}}, "$ref": "#/$defs/n"})",
                        R"({"next": {"next": {)"),
            R"("v":null},"v":null},"v":null})");
}

// The guarantee behind force_finish: after any tokens an ending is known, is accepted token by
// token, and completes the text.
TEST(Endings, AnyTextThatWasBegunCanBeEnded) {
  const std::vector<std::string> schemas = {
      R"({"type": "object", "properties": {"id": {"type": "integer", "multipleOf": 7},
          "name": {"anyOf": [{"type": "string", "maxLength": 9}, {"type": "null"}]},
          "tags": {"type": "array", "items": {"enum": ["aa", "abc", "na\"me", "é"]},
                   "minItems": 1, "maxItems": 4}}, "required": ["tags", "id"]})",
      R"({"type": "array", "items": {"type": "object", "minProperties": 2,
          "additionalProperties": {"type": "number"}}, "minItems": 1})",
      R"({"type": "object", "patternProperties": {"^a[0-9]+$": {"type": "boolean"}},
          "additionalProperties": false})",
      R"({"oneOf": [{"type": "string", "format": "date"}, {"type": "integer", "minimum": 1000}]})",
      R"({"type": ["object", "string", "null"]})",
      R"({"type": "string", "pattern": "^(ab|c{3}d)*é$"})"};
  std::mt19937 random(11);
  for (const std::string& schema : schemas) {
    const auto constraint = Compile(schema, Pieces());
    ASSERT_NE(constraint, nullptr) << schema;
    const size_t vocabulary = 256 + Pieces().size();
    TokenMask mask(vocabulary);
    for (int round = 0; round < 30; ++round) {
      const auto matcher = constraint->NewMatcher();
      std::string text;
      for (int step = 0; step < 25; ++step) {
        const auto ending = matcher->FindEnding(4096);
        ASSERT_TRUE(ending) << schema << "\nafter " << text;
        for (const TokenId id : ending->tokens) {
          matcher->Mask(&mask);
          ASSERT_TRUE(mask.Has(static_cast<size_t>(id))) << text << TextOf(ending->tokens);
          ASSERT_TRUE(matcher->Advance(id));
        }
        ASSERT_TRUE(matcher->IsWhole())
            << schema << "\nafter " << text << "\nwith " << TextOf(ending->tokens);
        matcher->Rewind(ending->tokens.size());
        matcher->Mask(&mask);
        std::vector<TokenId> allowed;
        for (TokenId id = 0; id < static_cast<TokenId>(vocabulary); ++id) {
          if (mask.Has(static_cast<size_t>(id)))
            allowed.insert(allowed.end(), id >= 256 ? 6 : 1, id);
        }
        if (allowed.empty()) break;
        const TokenId id = allowed[random() % allowed.size()];
        ASSERT_TRUE(matcher->Advance(id));
        text += PieceOf(id);
      }
    }
  }
}

TEST(Endings, PatternsAndChoicesEnd) {
  const auto pattern =
      MakePatternConstraint("x[0-9]{3}(yes|no)", Vocabulary(Pieces()), std::chrono::seconds(2));
  ASSERT_TRUE(pattern) << pattern.error().message;
  const auto matcher = (*pattern)->NewMatcher();
  matcher->AdvanceBytes("x1");
  EXPECT_EQ(TextOf(matcher->FindEnding(100)->tokens), "00no");
  EXPECT_FALSE(matcher->FindEnding(3));
}

TEST(Endings, WhatHasNoKnownEndingSaysSo) {
  // Three different items of one letter: the search does not look for them.
  EXPECT_EQ(EndingAfter(R"({"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 3,
                            "uniqueItems": true})",
                        ""),
            "-");
}

}  // namespace
}  // namespace aisp
