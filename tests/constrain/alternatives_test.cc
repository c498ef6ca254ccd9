// Alternatives that constants distinguish, among numbers too; what dynamic anchors mean; numbers in
// machine words compared with exact ones.
#include <random>

#include "constrain/language.h"
#include "constrain/number_spec.h"
#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

std::string Numbered(std::string text, int number) {
  const std::string digits = std::to_string(number);
  for (size_t at = text.find('#'); at != std::string::npos; at = text.find('#'))
    text.replace(at, 1, digits);
  return text;
}

// `count` times `part`, with # replaced by the number.
std::string Many(const char* part, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += (i > 0 ? "," : "") + Numbered(part, i);
  return out;
}

TEST(Alternatives, ThousandConstantsSideBySide) {
  for (const char* keyword : {"oneOf", "anyOf"}) {
    const std::string schema =
        "{\"" + std::string(keyword) + "\":[" +
        Many(R"({"const":"v#","title":"t"},{"const":#},{"enum":["w#","x#"]})", 500) + "]}";
    EXPECT_TRUE(Allows(schema, R"("v499")"));
    EXPECT_TRUE(Allows(schema, "499"));
    EXPECT_TRUE(Allows(schema, R"("x17")"));
    EXPECT_FALSE(Allows(schema, R"("v500")"));
    EXPECT_FALSE(Allows(schema, "500"));
  }
  const char* twice =
      R"({"oneOf":[{"enum":["a","b"]},{"const":"b"},{"const":1},{"enum":[1.0,2]}]})";
  EXPECT_TRUE(Allows(twice, R"("a")"));
  EXPECT_TRUE(Allows(twice, "2"));
  EXPECT_FALSE(Allows(twice, R"("b")"));
  EXPECT_FALSE(Allows(twice, "1"));
}

TEST(Alternatives, HundredsOfObjectsAreToldApartByAMember) {
  const std::string schema =
      R"({"oneOf":[)" +
      Many(R"({"properties":{"k":{"const":"c#"},"v":{"type":"string","maxLength":#},"n#":{}},
               "required":["k"],"additionalProperties":false})",
           600) +
      "]}";
  const auto constraint = Compile(schema);
  ASSERT_NE(constraint, nullptr);
  EXPECT_TRUE(Allows(constraint.get(), R"({"v":"abc","k":"c3","n3":null})"));
  EXPECT_TRUE(Allows(constraint.get(), R"({"n599":0,"k":"c599"})"));
  EXPECT_FALSE(Allows(constraint.get(), R"({"v":"abcd","k":"c3"})"));
  EXPECT_FALSE(Allows(constraint.get(), R"({"n598":0,"k":"c599"})"));
  EXPECT_FALSE(Allows(constraint.get(), R"({"k":"c600"})"));
}

// Both sides name the same value: the constraint must not be dropped on both.
TEST(Alternatives, WhatTwoPartsSayOfOneMemberStays) {
  const char* schema = R"({"type":"object","required":["k"],"allOf":[
      {"anyOf":[{"properties":{"k":{"const":1}}},{"properties":{"k":{"const":2}}},
                {"properties":{"k":{"const":3}}}]},
      {"anyOf":[{"properties":{"k":{"enum":[1,2]}}},{"properties":{"k":{"enum":[2,3]},"x":false}},
                {"properties":{"k":{"const":4}}}]}]})";
  EXPECT_TRUE(Allows(schema, R"({"k":1,"x":0})"));
  EXPECT_TRUE(Allows(schema, R"({"k":2,"x":0})"));
  EXPECT_TRUE(Allows(schema, R"({"k":3})"));
  EXPECT_FALSE(Allows(schema, R"({"k":3,"x":0})"));
  EXPECT_FALSE(Allows(schema, R"({"k":4})"));
  EXPECT_FALSE(Allows(schema, R"({"k":5})"));
}

TEST(Alternatives, ManyConditionsOnOneMember) {
  const std::string schema =
      R"({"type":"object","properties":{"k":{"type":["integer","string"]}},"allOf":[)" +
      Many(R"({"if":{"properties":{"k":{"const":#}},"required":["k"]},"then":{"required":["r#"]},
               "else":{"properties":{"e#":{"type":"null"}}}})",
           60) +
      "]}";
  const auto constraint = Compile(schema);
  ASSERT_NE(constraint, nullptr);
  EXPECT_TRUE(Allows(constraint.get(), R"({"k":7,"r7":1,"e7":1,"e8":null})"));
  EXPECT_FALSE(Allows(constraint.get(), R"({"k":7})"));
  EXPECT_FALSE(Allows(constraint.get(), R"({"k":7,"r7":1,"e8":1})"));
  EXPECT_TRUE(Allows(constraint.get(), R"({"k":"x","e7":null})"));
  EXPECT_TRUE(Allows(constraint.get(), "{}"));
  EXPECT_FALSE(Allows(constraint.get(), R"({"k":60,"e59":0})"));
}

TEST(Alternatives, ADynamicReferenceMeansWhatWasMetFirst) {
  const char* schema =
      R"({"$schema":"https://json-schema.org/draft/2020-12/schema","$id":"http://a.test/root",
      "anyOf":[{"properties":{"list":{"$ref":"numbers"}},"required":["list"]},
               {"properties":{"texts":{"$ref":"texts"}},"required":["texts"]}],
      "$defs":{"list":{"$id":"list","items":{"$dynamicRef":"#item"},"type":"array",
                       "$defs":{"item":{"$dynamicAnchor":"item"}}},
               "numbers":{"$id":"numbers","$ref":"list",
                          "$defs":{"item":{"$dynamicAnchor":"item","type":"number"}}},
               "texts":{"$id":"texts","$ref":"list",
                        "$defs":{"item":{"$dynamicAnchor":"item","type":"string"}}}}})";
  EXPECT_TRUE(Allows(schema, R"({"list":[1,2]})"));
  EXPECT_FALSE(Allows(schema, R"({"list":["a"]})"));
  EXPECT_TRUE(Allows(schema, R"({"texts":["a"]})"));
  EXPECT_FALSE(Allows(schema, R"({"texts":[1]})"));
}

TEST(Alternatives, WhatContainsMatchedIsEvaluated) {
  const char* schema = R"({"$schema":"https://json-schema.org/draft/2020-12/schema","type":"array",
      "prefixItems":[true],"contains":{"type":"string"},"unevaluatedItems":{"minimum":5,"type":"number"}})";
  EXPECT_TRUE(Allows(schema, R"([null,"a",5,"b"])"));
  EXPECT_FALSE(Allows(schema, R"([null,"a",4])"));
  EXPECT_FALSE(Allows(schema, R"([null,5])"));
}

TEST(Numbers, MachineWordsSayWhatDecimalsSay) {
  std::mt19937 random(7);
  const auto pick = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  for (int round = 0; round < 3000; ++round) {
    NumberSpec spec;
    spec.integer = pick(2) == 0;
    const int scale = spec.integer || pick(2) == 0 ? 0 : -1 - pick(3);
    const Decimal low = Decimal::Make(pick(600) - 300, scale);
    if (pick(4) > 0) spec.LimitLow(low, pick(2) == 0);
    if (pick(4) > 0)
      spec.LimitHigh(Decimal::Make(low.mantissa + pick(300), low.exponent), pick(2) == 0);
    if (spec.integer && pick(3) == 0) spec.multiples.push_back(Decimal::FromInt(1 + pick(9)));
    // The same set, in a form that the fast path does not recognise.
    NumberSpec slow = spec;
    slow.Exclude({Decimal::Make(123456789, 3)});
    for (int t = 0; t < 20; ++t) {
      std::string text = pick(3) == 0 ? "-" : "";
      text += std::to_string(pick(2) == 0 ? pick(10) : pick(1200));
      if (!spec.integer && pick(2) == 0)
        text += "." + (pick(3) == 0 ? "" : std::to_string(pick(100)));
      const auto quick = spec.QuickCanBegin(text);
      if (!quick) continue;
      EXPECT_EQ(*quick, slow.CanBegin(text)) << text << " round " << round;
    }
  }
}

TEST(Numbers, UniqueOnesEndWhenNoneIsLeft) {
  const char* schema = R"({"type":"array","uniqueItems":true,
                           "items":{"type":"integer","minimum":9,"maximum":12}})";
  const auto constraint = Compile(schema);
  ASSERT_NE(constraint, nullptr);
  EXPECT_TRUE(Allows(constraint.get(), "[12,9,11,10]"));
  const auto matcher = constraint->NewMatcher();
  EXPECT_EQ(matcher->AdvanceBytes("[9,10.0,11,"), 11U);
  EXPECT_EQ(matcher->AdvanceBytes("9"), 0U);
  EXPECT_EQ(matcher->AdvanceBytes("11"), 1U);  // 12 is left
  EXPECT_EQ(matcher->AdvanceBytes("12"), 2U);
  EXPECT_EQ(matcher->AdvanceBytes(","), 0U);
  EXPECT_EQ(matcher->AdvanceBytes("]"), 1U);
}

// A negative value counts as an item too, and was read.
TEST(Numbers, NegativeOnesAreUsedUpAsWell) {
  const auto constraint = Compile(R"({"type":"array","uniqueItems":true,"items":{"enum":["a",-0.5]},
                                      "contains":{"type":"string"}})");
  ASSERT_NE(constraint, nullptr);
  const auto matcher = constraint->NewMatcher();
  EXPECT_EQ(matcher->AdvanceBytes(R"(["a",-0.5)"), 9U);
  EXPECT_EQ(matcher->AdvanceBytes(","), 0U);
  EXPECT_EQ(matcher->AdvanceBytes("]"), 1U);
}

}  // namespace
}  // namespace aisp
