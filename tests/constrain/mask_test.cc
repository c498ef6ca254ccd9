// In every state a mask must agree with Advance for every token.
#include <chrono>
#include <random>

#include "constrain/deadline.h"
#include "tests/constrain/mask_harness.h"

namespace aisp {
namespace {

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
      R"({"type":"string","pattern":"^[a-c]+(-[a-c]+)*$","minLength":4,"maxLength":24})",
      R"({"type":"string","pattern":"^[^b]*a$","maxLength":20})",
      R"({"type":"string","pattern":"^([a-b]{1,3}|[a-z]*c)$","maxLength":20})",
      R"({"type":"string","pattern":"^[a-z\u00e9]+$","minLength":3})",
      R"({"type":"array","items":{"type":"string","pattern":"^[ab\u00e9]+$","maxLength":14},"uniqueItems":true})",
      R"({"type":["number","null"],"minimum":0.5,"maximum":130})",
      R"({"anyOf":[{"type":"object","properties":{"id":{"const":"aa"},"name":{"type":"integer"}},"required":["id"]},
                   {"type":"object","properties":{"id":{"const":"ab"},"name":{"type":"string"}},"required":["id"]}]})",
      R"({"type":"object","properties":{"na\"me":{"type":"string"},"é":{"type":"integer"}},"additionalProperties":false})",
      R"({"type":"array","contains":{"type":"string"},"minContains":1,"maxContains":2,"items":{"type":["string","boolean"]}})",
      R"({"not":{"type":["object","array"]}})",
  };
  for (const char* schema : schemas) {
    const auto constraint = Compile(schema, Pieces());
    ASSERT_NE(constraint, nullptr) << schema;
    for (uint32_t seed = 0; seed < 30; ++seed) {
      CompareMasks(constraint.get(), schema, seed);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(Mask, LongListsOfNumbersAreNotWalkedForEachToken) {
  std::string numbers = "[0";
  for (int i = 1; i < 3000; ++i) numbers += "," + std::to_string(i);
  numbers += "]";
  const auto start = Deadline::Now().cpu;
  for (const std::string& schema : std::vector<std::string>{
           "{\"enum\":" + numbers + "}",
           R"({"type":"integer","not":{"enum":)" + numbers + R"(},"minimum":0,"maximum":9999})",
           R"({"multipleOf":7,"enum":)" + numbers + "}"}) {
    const auto c = Compile(schema, Pieces());
    const auto matcher = c->NewMatcher();
    TokenMask mask(256 + Pieces().size());
    for (const char digit :
         std::string(schema.find("not") == std::string::npos ? "2100.000" : "4200.000")) {
      matcher->Mask(&mask);
      ASSERT_EQ(matcher->AdvanceBytes({&digit, 1}), 1u) << schema.substr(0, 60);
    }
    EXPECT_TRUE(matcher->IsWhole());
  }
  // Some hundredths of a second; checking each token against each number took minutes.
  EXPECT_LT(Deadline::Now().cpu - start, std::chrono::seconds(5));
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

// Two patterns whose states multiply, and tokens that visit them: computing a mask creates a
// bounded number of states. Every token in the mask is allowed, and tokens of one byte are in it.
TEST(Mask, StatesOfPatternsThatMeetAreMadeByABound) {
  std::mt19937 random(5);
  std::vector<std::string> pieces;
  for (int i = 0; i < 20'000; ++i) {
    std::string& piece = pieces.emplace_back();
    for (int c = 0; c < 60; ++c) piece.push_back(random() % 2 == 0 ? 'a' : 'b');
  }
  const auto constraint = Compile(
      R"({"allOf": [{"type": "string", "pattern": "^[ab]*a[ab]{9}(a|bb)*$"},
                    {"pattern": "^[ab]*b[ab]{10}(b|aa)*$"}]})",
      pieces);
  ASSERT_NE(constraint, nullptr);
  const auto matcher = constraint->NewMatcher();
  ASSERT_EQ(matcher->AdvanceBytes("\"ab"), 3u);
  TokenMask mask(256 + pieces.size());
  for (int step = 0; step < 20; ++step) {
    matcher->Mask(&mask);
    ASSERT_TRUE(mask.Has('a') && mask.Has('b')) << step;
    for (int i = 0; i < 200; ++i) {
      const auto token = static_cast<TokenId>(256 + random() % pieces.size());
      if (!mask.Has(static_cast<size_t>(token))) continue;
      ASSERT_TRUE(matcher->Advance(token));
      matcher->Rewind(1);
    }
    ASSERT_TRUE(matcher->Advance(random() % 2 == 0 ? 'a' : 'b'));
  }
}

}  // namespace
}  // namespace aisp
