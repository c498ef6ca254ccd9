#include "constrain/pattern.h"

#include "constrain/automaton.h"
#include "constrain/text_constraint.h"
#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

// Whether `pattern` is found in `text`.
bool Finds(std::string_view pattern, std::string_view text) {
  Languages languages;
  const auto language = CompilePattern(pattern, &languages);
  EXPECT_TRUE(language.has_value()) << pattern << ": " << language.error().message;
  return language && Automaton(&languages, *language).Matches(text);
}

TEST(Pattern, IsFoundAnywhereUnlessAnchored) {
  EXPECT_TRUE(Finds("b+", "abbc"));
  EXPECT_FALSE(Finds("^b+", "abbc"));
  EXPECT_FALSE(Finds("^ab$", "abc"));
  EXPECT_TRUE(Finds("^a|c$", "xc"));
  EXPECT_FALSE(Finds("a^b", "ab"));
}

TEST(Pattern, LookAheadAndBoundariesAreExact) {
  EXPECT_TRUE(Finds("^(?=.*\\d)(?=.*[a-z])\\w{3,}$", "ab1"));
  EXPECT_FALSE(Finds("^(?=.*\\d)(?=.*[a-z])\\w{3,}$", "abc"));
  EXPECT_FALSE(Finds("^(?!no).*$", "nothing"));
  EXPECT_TRUE(Finds("\\bcat\\b", "a cat!"));
  EXPECT_FALSE(Finds("\\bcat\\b", "concat"));
  EXPECT_TRUE(Finds("\\Bcat", "concat"));
}

TEST(Pattern, ClassesCountCodePoints) {
  EXPECT_TRUE(Finds("^.$", "\xF0\x9F\x90\xB2"));
  EXPECT_TRUE(Finds("^\\p{Lu}[^\\x00-\\x7f]$", "Éé"));
  EXPECT_FALSE(Finds("^\\p{Lu}$", "é"));
  EXPECT_TRUE(Finds("^[\\w-.]+$", "a-b.c"));
  EXPECT_FALSE(Finds("^.$", "\n"));
}

TEST(Pattern, WhatCannotBeEnforcedIsNamed) {
  Languages languages;
  for (const char* pattern : {"(a)\\1", "(?<=a)b", "(?:(?!x)y)*", "a++", "\\Z", "(?i)a"}) {
    const auto language = CompilePattern(pattern, &languages);
    ASSERT_FALSE(language.has_value()) << pattern;
    EXPECT_EQ(language.error().code, Code::kUnimplemented) << pattern;
  }
  for (const char* pattern : {"(", "a)", "[b-a]", "*a", "a{3,1}", "[a"}) {
    const auto language = CompilePattern(pattern, &languages);
    ASSERT_FALSE(language.has_value()) << pattern;
    EXPECT_EQ(language.error().code, Code::kInvalidArgument) << pattern;
  }
}

TEST(TextConstraint, KeepsToAPatternFromEndToEnd) {
  const auto constraint = MakePatternConstraint("(\\d{3}-)?\\d{4}", Vocabulary({"555", "-12"}));
  ASSERT_TRUE(constraint.has_value());
  EXPECT_TRUE(Allows(constraint->get(), "555-1234"));
  EXPECT_TRUE(Allows(constraint->get(), "1234"));
  EXPECT_FALSE(Allows(constraint->get(), "555-123"));
  const auto matcher = (*constraint)->NewMatcher();
  ASSERT_TRUE(matcher->Advance(256));
  TokenMask mask(258);
  matcher->Mask(&mask);
  EXPECT_TRUE(mask.Has(257));
  EXPECT_TRUE(mask.Has('7'));
  EXPECT_FALSE(mask.Has(256));
}

TEST(TextConstraint, ChoicesEndWhereNothingElseCanFollow) {
  const auto constraint = MakeChoiceConstraint({"yes", "yesterday", "no"}, Vocabulary());
  ASSERT_TRUE(constraint.has_value());
  const auto matcher = (*constraint)->NewMatcher();
  ASSERT_EQ(matcher->AdvanceBytes("yes"), 3u);
  EXPECT_TRUE(matcher->IsWhole());
  ASSERT_EQ(matcher->AdvanceBytes("t"), 1u);
  EXPECT_FALSE(matcher->IsWhole());
  EXPECT_EQ(matcher->Forced(20), "erday");
}

// Assertions in repetitions and sequences share what follows them, and derivatives share terms:
// written out as trees these would have up to 2^60 nodes.
TEST(Pattern, AssertionsInRepetitionsTakeNoTimeWithoutEnd) {
  for (const char* pattern :
       {"(?:\\b[^x]){2,60}", "(?:(?:\\b|b)){0,20}(?:.{3,20}){2,5}", "(a?){64}a{64}$b?(\\b|c){30}",
        "(?:[a-z]*\\b[0-9]*$|x){30}", "(?:(?:(?:a|b|$|c){20}){20}){20}"}) {
    const auto begin = std::chrono::steady_clock::now();
    const auto made =
        MakePatternConstraint(pattern, Vocabulary({"a", "b", "c"}), std::chrono::milliseconds(500));
    if (!made) {
      EXPECT_EQ(made.error().code, Code::kResourceExhausted) << made.error().message;
    }
    // Far more than the limit: a busy machine is no failure.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << pattern;
  }
}

}  // namespace
}  // namespace aisp
