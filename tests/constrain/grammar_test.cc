// Grammars in GBNF and in Lark's notation: which texts they allow, and that masks agree with the
// parser.
#include "constrain/grammar_constraint.h"

#include <gmock/gmock.h>

#include "tests/constrain/mask_harness.h"

namespace aisp {
namespace {

constexpr std::string_view kJson = R"(
root   ::= object  # a comment
value  ::= object | array | string | number | ("true" | "false" | "null")
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]*) ("." [0-9]+)? ws
ws ::= [ \t\n]{0,3}
)";

std::shared_ptr<Constraint> Of(std::string_view grammar) {
  auto made = MakeGrammarConstraint(grammar, Vocabulary(Pieces()));
  EXPECT_TRUE(made.has_value()) << (made ? "" : made.error().message);
  return made ? *made : nullptr;
}

void ExpectTexts(std::string_view grammar, const std::vector<std::string>& good,
                 const std::vector<std::string>& bad) {
  const auto constraint = Of(grammar);
  ASSERT_NE(constraint, nullptr);
  for (const std::string& text : good) EXPECT_TRUE(Allows(constraint.get(), text)) << text;
  for (const std::string& text : bad) EXPECT_FALSE(Allows(constraint.get(), text)) << text;
}

TEST(Grammar, GbnfOfJson) {
  ExpectTexts(kJson, {"{}", R"({"a": [1, -2.5, {"b": null}], "c":"\u00e9\""})", R"({"é":[[[]]]})"},
              {"[]", "{", R"({"a"})", R"({"a":01})", R"({"a":[}})", "{}}"});
}

TEST(Grammar, RepetitionsClassesAndGroups) {
  ExpectTexts("root ::= [a-c]{2,3} (\"-\" [^a-z])* .?", {"ab", "abc", "ab-1-2", "cc-1x", "abé"},
              {"a", "abcdd", "ab-x1"});
  ExpectTexts("root ::= \"x\"{2} | \"\\u00e9\" \"y\"{1,}", {"xx", "éy", "éyyy"}, {"x", "é", "xxx"});
}

TEST(Grammar, EveryKindOfRecursion) {
  ExpectTexts("root ::= root \"+\" root | [0-9]+", {"1", "1+2", "12+3+4"}, {"+", "1+", ""});
  ExpectTexts("root ::= \"(\" root \")\" root | \"\"", {"", "()", "(())()"}, {"(", ")("});
  ExpectTexts("root ::= a\na ::= b\nb ::= a | \"x\"", {"x"}, {"", "xx"});
  ExpectTexts("root ::= a a\na ::= \"x\"? b*\nb ::= \"y\" | \"\"", {"", "x", "xx", "xyxy"},
              {"xxx"});
}

TEST(Grammar, RightRecursionStaysSmall) {
  const auto constraint = Of("root ::= \"a\" root | \"b\"");
  const auto matcher = constraint->NewMatcher();
  const std::string text(5000, 'a');
  EXPECT_EQ(matcher->AdvanceBytes(text), text.size());
  EXPECT_FALSE(matcher->IsWhole());
  EXPECT_TRUE(matcher->Advance('b'));
  EXPECT_TRUE(matcher->IsWhole());
}

TEST(Grammar, LarkSubset) {
  ExpectTexts(R"(
// sums
?start: sum
sum: product (("+" | "-") product)* -> total
product: NUMBER ("*" NUMBER)~0..2
NUMBER.2: /[0-9]+/ | "x".."z"
%ignore " "
)",
              {"1", "1 + 2", " 1+x *2 - 3 ", "1*2*3"}, {"1 2", "1 +", "1*2*3*4", "w"});
  ExpectTexts("start: [WORD] \"!\"\n%import common.WORD", {"!", "hello!"}, {"hello", "h i!"});
}

TEST(Grammar, ErrorsNameTheLineAndWhatIsWrong) {
  auto error = [](std::string_view grammar) {
    const auto made = MakeGrammarConstraint(grammar, Vocabulary());
    return made ? std::string("none") : made.error().message;
  };
  EXPECT_THAT(error("root ::= \"a\"\nb ::= ("), testing::HasSubstr("line 2"));
  EXPECT_THAT(error("root ::= other"), testing::HasSubstr("rule 'other' is used and not defined"));
  EXPECT_THAT(error("a ::= \"a\""), testing::HasSubstr("no rule 'root'"));
  EXPECT_THAT(error("root ::= root \"a\""), testing::HasSubstr("no text fits"));
  EXPECT_THAT(error("start: \"a\"i"), testing::HasSubstr("flag"));
  EXPECT_THAT(error("root ::= \"a\"{9999}"), testing::HasSubstr("0 to 2000"));
}

TEST(Grammar, MasksSayWhatTheMatcherSays) {
  const std::string_view grammars[] = {
      kJson,
      "root ::= (\" \"+ | \"a\"+)* \"x\"",
      "root ::= \"\\\"\" [^\"]* \"\\\"\" (\",\" root)?",
      "root ::= root \"1\" | [a-z]+ \":\"? | \"name\\\":\" [0-9]*",
      "start: \"[\" WORD (\",\" WORD)* \"]\"\n%import common.WORD\n%ignore /[ \\n]/",
  };
  for (const std::string_view grammar : grammars) {
    const auto constraint = Of(grammar);
    for (uint32_t seed = 1; seed <= 30; ++seed) {
      CompareMasks(constraint.get(), std::string(grammar), seed);
      ASSERT_FALSE(testing::Test::HasFatalFailure());
    }
  }
}

// Every split of a text into any number of parts is another parse.
TEST(Grammar, AmbiguityIsBounded) {
  const std::string_view grammars[] = {
      "root ::= root root | root root root | [a-z]+ | \"x\"? root \" \"?",
      "root ::= p*\np ::= q+ q* | \"(\" root \")\"\nq ::= [a-z ]+ | q p?",
  };
  for (const std::string_view grammar : grammars) {
    const auto constraint = Of(grammar);
    ASSERT_NE(constraint, nullptr);
    const auto matcher = constraint->NewMatcher();
    TokenMask mask(256 + Pieces().size());
    for (int i = 0; i < 60; ++i) {
      matcher->Mask(&mask);
      ASSERT_TRUE(mask.Has('a')) << grammar << " at " << i;
      ASSERT_TRUE(matcher->Advance('a')) << grammar << " at " << i;
    }
    EXPECT_TRUE(matcher->IsWhole());
  }
}

// Rules of which thousands may begin at one position.
TEST(Grammar, AsManyAlternativesAsOneLikes) {
  std::string grammar = "root ::= \"{\" root \"}\"";
  for (int i = 0; i < 3000; ++i) grammar += " | \"k" + std::to_string(i) + "(\" root? \")\"";
  ExpectTexts(grammar, {"k0()", "k2999(k17({k1500()}))"}, {"k3000()", "k2999"});
}

TEST(Grammar, WhatIsForcedComesNext) {
  EXPECT_EQ(Of("root ::= \"name: \" [a-z]")->NewMatcher()->Forced(100), "name: ");
}

}  // namespace
}  // namespace aisp
