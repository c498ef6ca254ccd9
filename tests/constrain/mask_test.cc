// A mask must say of every token what Advance says of it, in every state.
#include <random>

#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

const std::vector<std::string>& Pieces() {
  static const std::vector<std::string> kPieces = {
      "{\"",    "\":",    "\",",    "\",\"", "\"}",    "\"]",      "\":\"",    "\": \"",
      "\":{\"", "\": [",  "}}",     "}]",    "],",     "null",     "true",     "false",
      " \"",    ", \"",   "abc",    "name",  "na",     "ame\"",    "name\":",  "id\"",
      "1x",     "x\"",    "12",     "123",   "0.5",    "-1",       "\\n",      "\\u00",
      "\\\"",   "a\\\"b", "\\\\\"", "\xC3",  "\xA9",   "\xC3\xA9", "\xF0\x9F", "\x98\x80",
      "\n  ",   "    ",   "ab\"",   "aa",    "aaaa\"", "aaaaaaaa", "{}",       "[]",
      "\"\"",   "1,",     "1}",     "e+",    "e+1",    ".0",       "n\\u0061", "\\u006",
      "1\"}"};
  return kPieces;
}

// Draws tokens by chance until the text is whole or long, and compares at every step.
void Compare(const char* schema, uint32_t seed) {
  const auto constraint = Compile(schema, Pieces());
  ASSERT_NE(constraint, nullptr) << schema;
  const size_t vocabulary = 256 + Pieces().size();
  std::mt19937 random(seed);
  const auto matcher = constraint->NewMatcher();
  std::string text;
  TokenMask mask(vocabulary);
  for (int step = 0; step < 40; ++step) {
    matcher->Mask(&mask);
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < static_cast<TokenId>(vocabulary); ++id) {
      const bool taken = matcher->Advance(id);
      if (taken) matcher->Rewind(1);
      ASSERT_EQ(mask.Has(static_cast<size_t>(id)), taken)
          << schema << "\nafter " << text << "\ntoken "
          << (id < 256 ? std::string(1, static_cast<char>(id))
                       : Pieces()[static_cast<size_t>(id) - 256]);
      // Long tokens more often, blanks seldom.
      const bool blank = id == ' ' || id == '\n' || id == '\t' || id == '\r';
      if (taken && (!blank || random() % 8 == 0))
        allowed.insert(allowed.end(), id >= 256 ? 6 : 1, id);
    }
    if (allowed.empty()) {
      ASSERT_TRUE(matcher->IsWhole()) << schema << "\na dead end after " << text;
      return;
    }
    const TokenId id = allowed[random() % allowed.size()];
    ASSERT_TRUE(matcher->Advance(id));
    text +=
        id < 256 ? std::string(1, static_cast<char>(id)) : Pieces()[static_cast<size_t>(id) - 256];
  }
}

TEST(Mask, SaysWhatTheMatcherSaysInEveryState) {
  const char* schemas[] = {
      R"({})",
      R"({"type":"object","properties":{"name":{"type":"string"},"id":{"type":"integer"}},"required":["name"]})",
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":5},"na":{"type":"null"}},"additionalProperties":false})",
      R"({"type":"object","propertyNames":{"maxLength":2},"minProperties":2,"maxProperties":3})",
      R"({"type":"object","patternProperties":{"^a":{"type":"string","pattern":"^a+b?$"}},"additionalProperties":{"type":"boolean"}})",
      R"({"type":"array","items":{"type":"string","pattern":"^\\d+x$"},"uniqueItems":true})",
      R"({"type":"array","items":{"type":"string"},"uniqueItems":true,"minItems":2})",
      R"({"type":"string","minLength":3,"maxLength":9})",
      R"({"type":"string","pattern":"^(ab|aa)*$","minLength":3,"maxLength":11})",
      R"({"type":["number","null"],"minimum":0.5,"maximum":130})",
      R"({"anyOf":[{"type":"object","properties":{"id":{"const":"aa"},"name":{"type":"integer"}},"required":["id"]},
                   {"type":"object","properties":{"id":{"const":"ab"},"name":{"type":"string"}},"required":["id"]}]})",
      R"({"type":"object","properties":{"na\"me":{"type":"string"},"é":{"type":"integer"}},"additionalProperties":false})",
      R"({"type":"array","contains":{"type":"string"},"minContains":1,"maxContains":2,"items":{"type":["string","boolean"]}})",
      R"({"not":{"type":["object","array"]}})",
  };
  for (const char* schema : schemas) {
    for (uint32_t seed = 0; seed < 12; ++seed) {
      Compare(schema, seed);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Mask, RewindGoesBackOverTokens) {
  const auto constraint = Compile(
      R"({"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":false})");
  const auto matcher = constraint->NewMatcher();
  for (const char c : std::string(R"({"a":12)"))
    ASSERT_TRUE(matcher->Advance(static_cast<uint8_t>(c)));
  EXPECT_FALSE(matcher->Advance('x'));
  matcher->Rewind(2);
  EXPECT_FALSE(matcher->Advance('}'));
  EXPECT_TRUE(matcher->Advance('7'));
  EXPECT_TRUE(matcher->Advance('}'));
  EXPECT_TRUE(matcher->IsWhole());
}

TEST(Mask, ForcedTextIsWhatMustComeNext) {
  const auto constraint = Compile(
      R"({"type":"object","properties":{"name":{"const":"fox"}},"required":["name"],"additionalProperties":false})");
  EXPECT_EQ(constraint->NewMatcher()->Forced(100), R"({"name":"fox"})");
}

}  // namespace
}  // namespace aisp
