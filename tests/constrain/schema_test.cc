#include <gmock/gmock.h>

#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

using testing::Test;

TEST(JsonSchema, MembersComeInAnyOrderAndOnce) {
  const char* schema =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})";
  EXPECT_TRUE(Allows(schema, R"({"a":1,"b":"x"})"));
  EXPECT_TRUE(Allows(schema, R"({"b":"x","a":1})"));
  EXPECT_TRUE(Allows(schema, R"({"other":[null],"a":1})"));
  EXPECT_FALSE(Allows(schema, R"({"b":"x"})"));
  EXPECT_FALSE(Allows(schema, R"({"a":1,"a":2})"));
  EXPECT_FALSE(Allows(schema, R"({"a":1,"c":1,"c":2})"));
  EXPECT_FALSE(Allows(schema, R"({"a":1,"b":2})"));
}

TEST(JsonSchema, EscapedSpellingsOfANameAreThatName) {
  const char* schema =
      R"({"properties":{"é":{"type":"integer"}},"additionalProperties":false,"type":"object"})";
  EXPECT_TRUE(Allows(schema, R"({"é":1})"));
  EXPECT_TRUE(Allows(schema, R"({"\u00e9":1})"));
  EXPECT_FALSE(Allows(schema, R"({"\u00e8":1})"));
  EXPECT_FALSE(Allows(schema, R"({"\u00e9":"x"})"));
}

TEST(JsonSchema, RefusesAtTheFirstByteThatCannotBeCompleted) {
  const auto constraint = Compile(
      R"({"type":"object","properties":{"ab":{}},"additionalProperties":false,"maxProperties":1})");
  const auto matcher = constraint->NewMatcher();
  EXPECT_EQ(matcher->AdvanceBytes(R"({"x")"), 2u);
  EXPECT_EQ(matcher->AdvanceBytes(R"({"ab":1)"), 7u);
  EXPECT_EQ(matcher->AdvanceBytes(","), 0u);  // no member may follow
  EXPECT_EQ(matcher->AdvanceBytes("}"), 1u);
  EXPECT_TRUE(matcher->IsWhole());
}

// A name from a finite language that is too large to list.
TEST(JsonSchema, SomeMemberMayHaveOneOfManyNames) {
  const char* schema = R"({"type":"object","oneOf":[{"propertyNames":{"pattern":"^..+$"}},{}]})";
  EXPECT_TRUE(Allows(schema, R"({"b":1})"));
  EXPECT_TRUE(Allows(schema, R"({"bb":1,"b":2})"));
  EXPECT_FALSE(Allows(schema, R"({})"));
  EXPECT_FALSE(Allows(schema, R"({"bb":1})"));
  const char* condition =
      R"({"type":"object","if":{"patternProperties":{"^.{0,2}$":{"type":"array"}}},
      "then":{"required":["long"]}})";
  EXPECT_TRUE(Allows(condition, R"({"a":13})"));
  EXPECT_TRUE(Allows(condition, R"({"a":[],"long":1})"));
  EXPECT_FALSE(Allows(condition, R"({"a":[]})"));
}

// 40 names, of which at least one must have a number as its value: the last one, if no other had.
TEST(JsonSchema, TheLastOfFewNamesFulfilsWhatIsOpen) {
  const auto constraint = Compile(R"({"type":"object","patternProperties":{"^[a-t][01]$":{}},
      "additionalProperties":false,"not":{"patternProperties":{"^[a-t][01]$":{"type":"string"}}}})");
  ASSERT_NE(constraint, nullptr);
  const auto matcher = constraint->NewMatcher();
  std::string text = "{";
  for (int i = 0; i < 39; ++i) {
    text +=
        std::string("\"") + static_cast<char>('a' + i / 2) + (i % 2 == 0 ? '0' : '1') + "\":\"\",";
  }
  text += "\"t1\":";
  EXPECT_EQ(matcher->AdvanceBytes(text), text.size());
  EXPECT_EQ(matcher->AdvanceBytes("\""), 0u);
  EXPECT_EQ(matcher->AdvanceBytes("1}"), 2u);
  EXPECT_TRUE(matcher->IsWhole());
}

TEST(JsonSchema, SomeMemberMustExistWithinALimitOfMembers) {
  const auto constraint = Compile(R"({"type":"object","maxProperties":2,"required":["a"],
      "not":{"additionalProperties":{"type":"string"}}})");
  ASSERT_NE(constraint, nullptr);
  EXPECT_TRUE(Allows(constraint.get(), R"({"a":1})"));
  EXPECT_TRUE(Allows(constraint.get(), R"({"b":"x","a":1})"));
  EXPECT_TRUE(Allows(constraint.get(), R"({"b":1,"a":"x"})"));
  EXPECT_FALSE(Allows(constraint.get(), R"({"a":"x"})"));
  const auto matcher = constraint->NewMatcher();
  ASSERT_EQ(matcher->AdvanceBytes(R"({"a":"x","b":)"), 13u);
  EXPECT_EQ(matcher->AdvanceBytes("\""), 0u);  // the last one must not be a string
  EXPECT_EQ(matcher->AdvanceBytes("1"), 1u);
  EXPECT_EQ(matcher->AdvanceBytes(","), 0u);
  EXPECT_EQ(matcher->AdvanceBytes("}"), 1u);
}

// Numbers have at most 37 digits, so the last digit must make it a non-multiple.
TEST(JsonSchema, NumbersThatAreNoMultiplesEndWithinTheirDigits) {
  const auto constraint = Compile(R"({"type":"number","not":{"multipleOf":0.01}})");
  ASSERT_NE(constraint, nullptr);
  const auto matcher = constraint->NewMatcher();
  EXPECT_EQ(matcher->AdvanceBytes("810415965629491537477398523895522924.4"), 34u);
  EXPECT_EQ(matcher->AdvanceBytes("8104159656294915374773985238955229.123"), 38u);
  EXPECT_TRUE(matcher->IsWhole());
}

TEST(JsonSchema, WholeNumbersMayBeginBehindATinyBound) {
  const char* schema = R"({"type":"integer","minimum":5e-324,"maximum":100})";
  EXPECT_TRUE(Allows(schema, "1"));
  EXPECT_TRUE(Allows(schema, "100"));
  EXPECT_FALSE(Allows(schema, "0"));
  EXPECT_TRUE(Allows(R"({"type":"integer","maximum":-1e-300})", "-1"));
  EXPECT_FALSE(Allows(R"({"type":"integer","maximum":-1e-300})", "0"));
}

TEST(JsonSchema, OnePatternHasOtherLimitsOfLengthElsewhere) {
  const char* schema = R"({"type":"object","properties":{
      "a":{"type":"string","pattern":"^[a-z]+$","minLength":10,"maxLength":20},
      "b":{"type":"string","pattern":"^[a-z]+$","maxLength":4},
      "c":{"type":"string","pattern":"^[a-z]+$","minLength":2}}})";
  EXPECT_TRUE(Allows(schema, R"({"a":"abcdefghijkl","b":"abc","c":"abcdefgh"})"));
  EXPECT_FALSE(Allows(schema, R"({"a":"abc"})"));
  EXPECT_FALSE(Allows(schema, R"({"b":"abcdefghijkl"})"));
  EXPECT_FALSE(Allows(schema, R"({"c":"a"})"));
}

TEST(JsonSchema, ReferencesOfAllLanguagesAndTheirTemplatesAreFormats) {
  const char* iri = R"({"type":"string","format":"iri"})";
  EXPECT_TRUE(Allows(iri, R"("http://\u00e4.example/\u00f6?q=\ue000#\u00fc")"));
  EXPECT_TRUE(Allows(iri, R"("http://[v1.a:b]/\ud83d\ude00")"));
  EXPECT_FALSE(Allows(iri, R"("/\u00e4")"));
  EXPECT_FALSE(Allows(iri, R"("http://e.x/\ue000")"));  // private use outside of a query
  EXPECT_FALSE(Allows(iri, R"("http://e.x/\ufdd0")"));  // not a character
  EXPECT_FALSE(Allows(iri, R"("http://[v1.\u00e4]/")"));
  EXPECT_FALSE(Allows(R"({"type":"string","format":"uri"})", R"("http://\u00e4.example/")"));
  const char* reference = R"({"type":"string","format":"iri-reference"})";
  EXPECT_TRUE(Allows(reference, R"("/\u00e4?\u00f6")"));
  EXPECT_TRUE(Allows(reference, R"("")"));
  EXPECT_FALSE(Allows(reference, R"("\u00e4 b")"));
  const char* uri_template = R"({"type":"string","format":"uri-template"})";
  EXPECT_TRUE(Allows(uri_template, R"("http://e.x/{term:1}/{?list*,a.b}'s")"));
  EXPECT_FALSE(Allows(uri_template, R"("http://e.x/{term")"));
  EXPECT_FALSE(Allows(uri_template, R"("{a:10000}")"));
  EXPECT_FALSE(Allows(uri_template, R"("{}")"));
}

TEST(JsonSchema, AFormatOfManyStatesHasLimitsOfLength) {
  const char* schema = R"({"type":"string","format":"date-time","minLength":21,"maxLength":25})";
  EXPECT_TRUE(Allows(schema, R"("2024-02-29T12:00:00.5Z")"));
  EXPECT_TRUE(Allows(schema, R"("2024-02-29T12:00:00+01:00")"));
  EXPECT_FALSE(Allows(schema, R"("2024-02-29T12:00:00Z")"));
  EXPECT_FALSE(Allows(schema, R"("2024-02-29T12:00:00.25+01:00")"));
  EXPECT_FALSE(Allows(schema, R"("2023-02-29T12:00:00.5Z")"));
}

// Values too small for plain notation must not allow a beginning in plain notation.
TEST(JsonSchema, TinyNumbersAreWrittenWithAnExponent) {
  const auto one = Compile(R"({"enum":[1e-300,0.25]})");
  ASSERT_NE(one, nullptr);
  EXPECT_TRUE(Allows(one.get(), "1e-300"));
  EXPECT_TRUE(Allows(one.get(), "0.25"));
  EXPECT_EQ(one->NewMatcher()->AdvanceBytes("0.0"), 2u);
  const auto piece = Compile(R"({"type":"number","exclusiveMinimum":0,"maximum":1e-40})");
  ASSERT_NE(piece, nullptr);
  EXPECT_TRUE(Allows(piece.get(), "1e-41"));
  EXPECT_EQ(piece->NewMatcher()->AdvanceBytes("0."), 0u);
}

// 1.0 is not an integer there.
TEST(JsonSchema, NumbersWithAPointAreNoIntegersOfDraft4) {
  const char* schema = R"({"$schema":"http://json-schema.org/draft-04/schema#",
      "oneOf":[{"type":"integer"},{"type":"number","maximum":9}]})";
  EXPECT_TRUE(Allows(schema, "1.0"));
  EXPECT_FALSE(Allows(schema, "1"));
  EXPECT_TRUE(Allows(schema, "12"));
  EXPECT_FALSE(Allows(schema, "12.0"));
  EXPECT_TRUE(Allows(schema, "0.5"));
  EXPECT_FALSE(Allows(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "1.0"));
}

TEST(JsonSchema, ExactlyOneIsNeitherNoneNorBoth) {
  const char* schema =
      R"({"oneOf":[{"type":"number","multipleOf":5},{"type":"number","multipleOf":3}]})";
  EXPECT_TRUE(Allows(schema, "10"));
  EXPECT_TRUE(Allows(schema, "9"));
  EXPECT_FALSE(Allows(schema, "15"));
  EXPECT_FALSE(Allows(schema, "2"));
  // A sign and a point leave all 37 digits open; a common multiple of those is beyond any integer.
  EXPECT_TRUE(Allows(schema, "-9"));
  EXPECT_TRUE(Allows(schema, "-10.0"));
  EXPECT_FALSE(Allows(schema, "-15"));
  EXPECT_FALSE(Allows(schema, "-0.5"));
  const char* objects = R"({"type":"object","oneOf":[{"required":["a"]},{"required":["b"]}]})";
  EXPECT_TRUE(Allows(objects, R"({"a":1})"));
  EXPECT_FALSE(Allows(objects, R"({"a":1,"b":1})"));
  EXPECT_FALSE(Allows(objects, R"({})"));
}

TEST(JsonSchema, ConditionsDecideByTheMemberThatStandsLast) {
  const char* schema =
      R"({"type":"object","properties":{"k":{"enum":["n","s"]},"v":{}},"required":["k","v"],
      "additionalProperties":false,
      "if":{"properties":{"k":{"const":"n"}}},"then":{"properties":{"v":{"type":"number"}}},
      "else":{"properties":{"v":{"type":"string"}}}})";
  EXPECT_TRUE(Allows(schema, R"({"v":1,"k":"n"})"));
  EXPECT_TRUE(Allows(schema, R"({"v":"x","k":"s"})"));
  EXPECT_FALSE(Allows(schema, R"({"v":1,"k":"s"})"));
  EXPECT_FALSE(Allows(schema, R"({"k":"s","v":1})"));
}

TEST(JsonSchema, RecursionGoesAsDeepAsTheText) {
  const char* schema =
      R"({"$defs":{"t":{"type":"object","properties":{"c":{"type":"array","items":{"$ref":"#/$defs/t"}}},
      "additionalProperties":false}},"$ref":"#/$defs/t"})";
  EXPECT_TRUE(Allows(schema, R"({"c":[{"c":[{},{"c":[]}]}]})"));
  EXPECT_FALSE(Allows(schema, R"({"c":[{"c":[{},{"d":[]}]}]})"));
}

TEST(JsonSchema, AnInstanceThatNeedsAnInfiniteValueIsNoInstance) {
  const auto refused = RefusalsOf(
      R"({"$defs":{"t":{"type":"object","required":["n"],"properties":{"n":{"$ref":"#/$defs/t"}}}},"$ref":"#/$defs/t"})");
  EXPECT_EQ(refused, std::vector<std::string>{"schema at ''"});
  // Where such a value is optional, its name must not be allowed.
  EXPECT_FALSE(Allows(
      R"({"type":"object","properties":{"a":{"$ref":"#"},"b":{"allOf":[{"type":"string"},{"type":"null"}]}}})",
      R"({"b":null})"));
}

TEST(JsonSchema, ArraysCountWhatTheyContain) {
  const char* schema =
      R"({"type":"array","contains":{"type":"integer"},"minContains":2,"maxContains":3,"maxItems":4})";
  EXPECT_TRUE(Allows(schema, R"([1,"a",2])"));
  EXPECT_FALSE(Allows(schema, R"([1,"a","b","c"])"));
  EXPECT_FALSE(Allows(schema, R"([1,2,3,4])"));
  EXPECT_FALSE(Allows(schema, R"([1])"));
}

TEST(JsonSchema, UniqueItemsEndWhenNothingIsLeft) {
  const auto constraint =
      Compile(R"({"type":"array","uniqueItems":true,"items":{"enum":["a","b"]}})");
  const auto matcher = constraint->NewMatcher();
  ASSERT_EQ(matcher->AdvanceBytes(R"(["a")"), 4u);
  EXPECT_EQ(matcher->AdvanceBytes(R"(,"a)"), 2u);
  EXPECT_EQ(matcher->AdvanceBytes(R"(,"b")"), 4u);
  EXPECT_EQ(matcher->AdvanceBytes(","), 0u);
}

TEST(JsonSchema, NumbersKeepTheirBoundsInEverySpelling) {
  const char* schema = R"({"type":"number","minimum":-1.5,"exclusiveMaximum":20,"multipleOf":0.5})";
  for (const char* good : {"-1.5", "0", "-0", "19.5", "7.50", "19.500"})
    EXPECT_TRUE(Allows(schema, good)) << good;
  for (const char* bad : {"-2", "20", "0.25", "19.6", "1e2", "01"})
    EXPECT_FALSE(Allows(schema, bad)) << bad;
  EXPECT_TRUE(Allows(R"({"type":"integer"})", "1.0"));
  EXPECT_TRUE(Allows(R"({"type":"integer"})", "123456789012345678901234567890123456789012345"));
  EXPECT_FALSE(Allows(R"({"type":"integer"})", "1.5"));
  EXPECT_TRUE(Allows(R"({"type":"number","minimum":1.2e17,"maximum":1.5e17})", "1.3e+17"));
  EXPECT_FALSE(Allows(R"({"type":"number","minimum":1.2e17,"maximum":1.5e17})", "1.6e+17"));
}

TEST(JsonSchema, NumbersUnderBoundsHaveExponents) {
  const auto allowed = [](const char* schema, std::initializer_list<const char*> texts) {
    for (const char* text : texts) EXPECT_TRUE(Allows(schema, text)) << schema << text;
  };
  const auto refused = [](const char* schema, std::initializer_list<const char*> texts) {
    for (const char* text : texts) EXPECT_FALSE(Allows(schema, text)) << schema << text;
  };
  allowed(R"({"type":"integer"})", {"1e2", "1E2", "12e1", "1.0e2", "-3e+05", "0e0", "12e+53"});
  refused(R"({"type":"integer"})", {"1e-2", "1e-0", "1.25e+1", "1.2e+54", "4.5", "1e309"});
  allowed(R"({"type":"integer","minimum":0,"maximum":100})", {"1e2", "1.0E+2", "0e5", "10e1"});
  refused(R"({"type":"integer","minimum":0,"maximum":100})", {"1e3", "2e2", "1.5e16", "11e1"});
  allowed(R"({"minimum":0.5,"maximum":1.5})", {"9e-1", "9.5E-1", "0.5e0", "1.25e0", "0.75e0"});
  refused(R"({"minimum":0.5,"maximum":1.5})", {"9e-2", "4.9e-1", "1.6e0", "0.04e1", "2"});
  allowed(R"({"type":"number","multipleOf":0.01})", {"25e-2", "1.5e+3", "1e+22"});
  refused(R"({"type":"number","multipleOf":0.01})", {"25e-4", "1.234e0"});
  allowed(R"({"const":100})", {"1e2", "100.0", "10e1"});
  refused(R"({"const":100})", {"1e1", "1.1e2"});
  allowed(R"({"enum":[-0.5,15,1e20,"a"]})", {"-5e-1", "15.0", "15e0", "1.0e20"});
  // A fraction never leads to a listed whole number.
  const auto listed = Compile(R"({"type":"integer","enum":[15,7]})");
  EXPECT_EQ(listed->NewMatcher()->AdvanceBytes("1.5"), 1U);
  // Digits outside the bounds are not allowed, whatever an exponent might change.
  refused(R"({"type":"number","minimum":0,"maximum":20})", {"150e-1"});
  refused(R"({"$schema":"http://json-schema.org/draft-04/schema#","type":"integer"})", {"1e2"});
}

TEST(JsonSchema, LengthsCountCodePointsNotBytesAndNotEscapes) {
  const char* schema = R"({"type":"string","minLength":2,"maxLength":3})";
  EXPECT_TRUE(Allows(schema, R"("éé")"));
  EXPECT_TRUE(Allows(schema, R"("\u00e9\ud83d\ude00x")"));
  EXPECT_FALSE(Allows(schema, R"("é")"));
  EXPECT_FALSE(Allows(schema, R"("abcd")"));
  const char* pairs = R"({"type":"string","pattern":"^(ab)*$","minLength":3,"maxLength":5})";
  EXPECT_TRUE(Allows(pairs, R"("abab")"));
  EXPECT_FALSE(Allows(pairs, R"("ababa")"));
}

TEST(JsonSchema, RefusesByKeywordAndPointer) {
  EXPECT_EQ(RefusalsOf(R"({"properties":{"a":{"pattern":"(a)\\1"},"b":{"format":"regex"}}})"),
            (std::vector<std::string>{"pattern at '/properties/a'", "format at '/properties/b'"}));
  EXPECT_EQ(RefusalsOf(R"({"items":{"$ref":"http://example.com/x"}})"),
            std::vector<std::string>{"$ref at '/items'"});
  EXPECT_EQ(RefusalsOf(R"({"type":"object","required":true})"),
            std::vector<std::string>{"required at ''"});
}

TEST(JsonSchema, ThatRefersToItselfInPlaceIsRefused) {
  EXPECT_FALSE(RefusalsOf(R"({"$ref":"#"})").empty());
  EXPECT_FALSE(RefusalsOf(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})").empty());
}

TEST(JsonSchema, CompilationEndsByItsDeadline) {
  CompileLimits limits;
  limits.timeout = std::chrono::milliseconds(0);
  const auto compiled =
      CompileSchema(R"({"type":"object","properties":{"a":{"type":"string"}}})", {}, limits);
  ASSERT_FALSE(compiled.has_value());
  EXPECT_EQ(compiled.error().code, Code::kDeadlineExceeded);
}

TEST(JsonSchema, WholeNumbersStayWithinADouble) {
  EXPECT_TRUE(Allows(R"({"type":"integer"})", "2e307"));
  EXPECT_FALSE(Allows(R"({"type":"integer"})", "2e351"));
  EXPECT_FALSE(Allows(R"({"type":"integer"})", "-2e308"));
  EXPECT_TRUE(Allows(R"({"type":"number","minimum":1e308})", "1.7e308"));
  EXPECT_FALSE(Allows(R"({"type":"number","minimum":1e308})", "1.8e308"));
  EXPECT_THAT(RefusalsOf(R"({"type":"number","minimum":1e310})"), testing::SizeIs(1));
}

TEST(JsonSchema, UniqueStringsOfLimitedLengthEndWhenNothingIsLeft) {
  const char* schema = R"({"type":"array","uniqueItems":true,"minItems":2,
                           "items":{"type":"string","maxLength":1,"pattern":"^(na|a|x)$"}})";
  EXPECT_TRUE(Allows(schema, R"(["x","a"])"));
  EXPECT_FALSE(Allows(schema, R"(["x","na"])"));
  EXPECT_EQ(Compile(schema)->NewMatcher()->AdvanceBytes(R"(["x","\u007)"), 10u);
}

TEST(JsonSchema, AGapHasRoomForOneEmptyLineAndIndentation) {
  EXPECT_TRUE(Allows(R"({"type":"array"})", "[\n" + std::string(128, ' ') + "1]"));
  EXPECT_TRUE(Allows(R"({"type":"array"})", "[\n\n1\n\n]"));
  EXPECT_FALSE(Allows(R"({"type":"array"})", "[\n\n\n1]"));
  EXPECT_FALSE(Allows(R"({"type":"array"})", "[\n" + std::string(129, ' ') + "1]"));
}

TEST(JsonSchema, DialectsThatAddAnnotationsAreReadAsTheirDraft) {
  // Draft 4 distinguishes 1.0 from an integer.
  const auto allows = [](const std::string& dialect) {
    return Allows(R"({"$schema":")" + dialect + R"(","type":"integer"})", "1.0");
  };
  EXPECT_TRUE(allows("https://spec.openapis.org/oas/3.1/dialect/base"));
  EXPECT_FALSE(allows(
      "http://iglucentral.com/schemas/com.snowplowanalytics.self-desc/schema/jsonschema/1-0-0#"));
  EXPECT_THAT(RefusalsOf(R"({"$schema":"http://example.com/mine"})"),
              testing::ElementsAre(testing::HasSubstr("unknown dialect")));
}

TEST(JsonSchema, RecursiveReferencesInOneResourceLeadToItsRoot) {
  const char* tree = R"({"$schema":"https://json-schema.org/draft/2019-09/schema",
    "$id":"http://here.test/tree","$recursiveAnchor":true,"type":"object",
    "properties":{"c":{"$recursiveRef":"#"}},"additionalProperties":false})";
  EXPECT_TRUE(Allows(tree, R"({"c":{"c":{}}})"));
  EXPECT_FALSE(Allows(tree, R"({"c":{"d":{}}})"));
  EXPECT_THAT(RefusalsOf(R"({"$schema":"https://json-schema.org/draft/2019-09/schema",
    "$recursiveAnchor":true,"properties":{"a":{"$id":"http://here.test/inner",
    "properties":{"c":{"$recursiveRef":"#"}}}}})"),
              testing::ElementsAre(testing::HasSubstr("$recursiveRef")));
}

TEST(JsonSchema, NamesHaveBoundsOfAnyLength) {
  const char* schema =
      R"({"propertyNames":{"maxLength":5000,"minLength":1,"pattern":"^[a-z]+$"},"type":"object"})";
  EXPECT_TRUE(Allows(schema, R"({")" + std::string(5000, 'a') + R"(":1})"));
  EXPECT_FALSE(Allows(schema, R"({")" + std::string(5001, 'a') + R"(":1})"));
  EXPECT_FALSE(Allows(schema, R"({"":1})"));
}

TEST(Schema, ExponentsHaveAnEnd) {
  for (const char* schema : {R"({"type":"number"})", R"({"type":"number","minimum":-1e300})"}) {
    const auto c = Compile(schema);
    for (const char* text : {"1e300", "1.5e+20", "2.5E-08", "1e-308", "1e022"})
      EXPECT_TRUE(Allows(c.get(), text)) << schema << text;
    for (const char* text : {"1e0022", "1e-3080", "1e+0016"})
      EXPECT_FALSE(Allows(c.get(), text)) << schema << text;
    // An allowed beginning can be completed.
    const auto matcher = c->NewMatcher();
    EXPECT_EQ(matcher->AdvanceBytes("2e02"), 4u) << schema;
    EXPECT_EQ(matcher->AdvanceBytes("2"), 1u) << schema;
    EXPECT_TRUE(matcher->IsWhole()) << schema;
  }
  EXPECT_EQ(Compile(R"({"type":"number","minimum":-1e300})")->NewMatcher()->AdvanceBytes("2e0011"),
            5u);
}

}  // namespace
}  // namespace aisp
