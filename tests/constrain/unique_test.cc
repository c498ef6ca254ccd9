// Arrays whose items must be unique: which items count as equal, and that no allowed beginning is a
// dead end.
#include "constrain/hostname.h"
#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

// The length of the allowed beginning of the text, in bytes.
size_t AllowedTo(std::string_view schema, std::string_view text) {
  const auto constraint = Compile(schema);
  EXPECT_NE(constraint, nullptr) << "refused: " << schema;
  if (constraint == nullptr) return 0;
  const auto matcher = constraint->NewMatcher();
  for (size_t i = 0; i < text.size(); ++i) {
    if (matcher->AdvanceBytes(text.substr(i, 1)) != 1) return i;
  }
  return text.size();
}

TEST(UniqueItems, EqualNumbersAreOneInEverySpelling) {
  const char* schema = R"({"type":"array","uniqueItems":true,"items":{"type":"number"}})";
  EXPECT_TRUE(Allows(schema, "[1,2,10,1.5]"));
  for (const char* bad : {"[1,1]", "[1,1.0]", "[100,1e2]", "[0,-0]", "[0,0.0e7]", "[15e-1,1.50]"})
    EXPECT_FALSE(Allows(schema, bad)) << bad;
  EXPECT_FALSE(Allows(schema, "[1,true,10]"));
}

TEST(UniqueItems, MembersStandInNoOrder) {
  const char* schema = R"({"type":"array","uniqueItems":true})";
  EXPECT_TRUE(Allows(schema, R"([{"a":1,"b":2},{"a":1},{"a":1,"b":[2]},[1,2],[2,1],"",null,0])"));
  EXPECT_FALSE(Allows(schema, R"([{"a":1,"b":2},{"b":2.0,"a":1}])"));
  EXPECT_FALSE(Allows(schema, R"([["\u0061"],["a"]])"));
  EXPECT_TRUE(Allows(schema, R"([1,true,"1",[1],false,0])"));
}

TEST(UniqueItems, NoBeginningLeadsNowhere) {
  const char* closed = R"({"type":"array","uniqueItems":true,"items":{"type":"object",
      "properties":{"n":{"type":"string"},"f":{"const":true}},"required":["n"],
      "additionalProperties":false}})";
  // After both objects with "x" only a longer name remains.
  EXPECT_EQ(AllowedTo(closed, R"([{"n":"x"},{"n":"x","f":true},{"n":"x"})"), 37u);
  EXPECT_TRUE(Allows(closed, R"([{"n":"x"},{"n":"x","f":true},{"n":"xy"}])"));
  // The object without "f" was used: this one must have "f".
  EXPECT_EQ(AllowedTo(closed, R"([{"n":"x"},{"n":"x"})"), 19u);
  const char* few = R"({"type":"array","uniqueItems":true,"items":{"enum":[[1],[1,2],{"a":1}]}})";
  EXPECT_EQ(AllowedTo(few, "[[1],[1]"), 7u);
  EXPECT_EQ(AllowedTo(few, R"([[1],[1,2],{"a":1},)"), 18u);
  const char* range =
      R"({"type":"array","uniqueItems":true,"items":{"type":"integer","minimum":9,"maximum":11}})";
  EXPECT_TRUE(Allows(range, "[10,11,9]"));
  EXPECT_EQ(AllowedTo(range, "[10,11,1"), 7u);
  EXPECT_EQ(AllowedTo(range, "[10,11,9,"), 8u);
}

TEST(UniqueItems, AnEscapeUnderALimitOfLengthLeadsSomewhere) {
  const char* schema = R"({"type":"array","uniqueItems":true,
                           "items":{"type":"string","maxLength":1,"pattern":"^a*$"}})";
  EXPECT_EQ(AllowedTo(schema, R"(["a","\)"), 6u);
}

TEST(UniqueItems, ArraysInsideArrays) {
  const char* schema = R"({"type":"array","uniqueItems":true,"items":{"type":"array",
                           "uniqueItems":true,"items":{"type":"boolean"}}})";
  EXPECT_TRUE(Allows(schema, "[[true],[true,false],[false,true],[]]"));
  EXPECT_FALSE(Allows(schema, "[[true,true]]"));
  EXPECT_EQ(AllowedTo(schema, "[[],[true],[false],[true,false],[false,true],"), 44u);
}

TEST(UniqueItems, AnAlternativeWithoutThemIsNotCut) {
  const char* schema = R"({"anyOf":[{"type":"array","items":{"enum":["a","b"]},"uniqueItems":true},
                                    {"type":"array","items":{"enum":["a","b"]},"minItems":3}]})";
  EXPECT_TRUE(Allows(schema, R"(["a","a","b"])"));
  EXPECT_TRUE(Allows(schema, R"(["a"])"));
  EXPECT_FALSE(Allows(schema, R"(["a","a"])"));
}

TEST(UniqueItems, MoreThanThereAreAreNone) {
  EXPECT_FALSE(RefusalsOf(R"({"type":"array","uniqueItems":true,"minItems":3,
                              "items":{"enum":[[1],[1.0],{"a":1}]}})")
                   .empty());
  EXPECT_TRUE(Allows(R"({"type":"array","uniqueItems":true,"minItems":2,
                         "items":{"enum":[[1],[1.0],{"a":1}]}})",
                     R"([{"a":1},[1]])"));
}

// Sixteen parts that overlap pairwise, except for the required member next to them.
TEST(OneOf, IsToldApartByWhatStandsBesideIt) {
  std::string parts;
  for (int i = 0; i < 16; ++i) {
    const std::string n = std::to_string(i);
    parts.append(i > 0 ? "," : "").append(R"({"properties":{"k":{"const":)").append(n);
    parts.append(R"(},"v":{"type":"object","properties":{"a)").append(n);
    parts.append(R"(":{"type":"string"},"b":{"type":"integer"}},"required":["b"]}}})");
  }
  const std::string schema = R"({"type":"object","required":["k","v"],"oneOf":[)" + parts + "]}";
  EXPECT_TRUE(Allows(schema, R"({"k":3,"v":{"b":1,"a3":"x","a4":1}})"));
  EXPECT_FALSE(Allows(schema, R"({"k":3,"v":{"b":1,"a3":4}})"));
  EXPECT_FALSE(Allows(schema, R"({"k":16,"v":{"b":1}})"));
  // Overlapping parts are still distinguished.
  const char* both = R"({"required":["a"],"oneOf":[{"properties":{"a":{"type":"integer"}}},
                         {"properties":{"a":{"type":"number","minimum":3}}}]})";
  EXPECT_TRUE(Allows(both, R"({"a":1})"));
  EXPECT_TRUE(Allows(both, R"({"a":3.5})"));
  EXPECT_FALSE(Allows(both, R"({"a":3})"));
}

TEST(Hostnames, InternationalisedLabelsAreAskedOfTheirLibrary) {
  if (!KnowsHostnames()) GTEST_SKIP() << "built without libidn2";
  const char* schema = R"({"type":"string","format":"hostname"})";
  for (const char* good : {"a", "A-b.example", "xn--4gbwdl.xn--wgbh1c", "XN--bcher-kva.ch", "xn-a",
                           "1.2.3", "a-b-c.d"})
    EXPECT_TRUE(Allows(schema, "\"" + std::string(good) + "\"")) << good;
  for (const char* bad : {"", "-a", "a-", "a..b", "a.", ".a", "a_b", "ab--c", "xn--X", "xn--",
                          "xn--07jt112bpxg.xn--9t4b11yi5a", "xn--abc-"})
    EXPECT_FALSE(Allows(schema, "\"" + std::string(bad) + "\"")) << bad;
  EXPECT_TRUE(Allows(schema, "\"" + std::string(63, 'a') + ".b\""));
  EXPECT_FALSE(Allows(schema, "\"" + std::string(64, 'a') + "\""));
}

}  // namespace
}  // namespace aisp
