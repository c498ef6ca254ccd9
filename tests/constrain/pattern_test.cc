#include "constrain/pattern.h"

#include <iterator>
#include <regex>

#include "common/random.h"
#include "constrain/automaton.h"
#include "constrain/grammar_constraint.h"
#include "constrain/text_constraint.h"
#include "tests/constrain/schema_harness.h"
#include "tests/support/sanitized.h"

namespace aisp {
namespace {

// Whether `text` contains a match of `pattern`.
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

// After a word boundary the compiler distinguishes texts by their last character. The terms of a
// literal used to double with each of its characters.
TEST(Pattern, BoundariesBehindLongTextsTakeFewTerms) {
  const std::string literal(60, 'a');
  for (const std::string& pattern :
       {literal + "\\b", "\\b" + literal + "\\b", "^(?:" + literal + " ?)+\\b"}) {
    Languages languages(20'000);
    const auto language = CompilePattern(pattern, &languages);
    ASSERT_TRUE(language.has_value()) << language.error().message;
    Automaton automaton(&languages, *language);
    EXPECT_TRUE(automaton.Matches(literal + " b"));
    EXPECT_FALSE(automaton.Matches(literal + "b"));
    EXPECT_FALSE(languages.Exhausted());
  }
}

std::string RandomPattern(SplitMix64* random, int depth) {
  const auto pick = [random](const auto& list) {
    return std::string(list[random->Next() % std::size(list)]);
  };
  constexpr const char* kLeaves[] = {"a",    "b",    "_",   " ",   "-", ".",
                                     "[ab]", "[^a]", "\\w", "\\W", ""};
  constexpr const char* kAsserts[] = {"\\b", "\\B", "^", "$"};
  constexpr const char* kCounts[] = {"*", "+", "?", "{2}", "{1,3}", "{0,2}"};
  std::string out;
  for (uint64_t parts = 1 + random->Next() % 3; parts > 0; --parts) {
    const uint64_t kind = random->Next() % 10;
    if (kind < 3 && depth > 0) {
      out += "(?:" + RandomPattern(random, depth - 1);
      out += random->Next() % 3 == 0 ? "|" + RandomPattern(random, depth - 1) + ")" : ")";
    } else if (kind < 5) {
      out += pick(kAsserts);
      continue;
    } else {
      out += pick(kLeaves);
      if (out.empty() || out.back() == ')') continue;
    }
    const bool counts = kind < 8 && !out.empty() &&
                        std::string_view("(|{*+?^$").find(out.back()) == std::string_view::npos;
    if (counts && random->Next() % 2 == 0) out += pick(kCounts);
  }
  return out;
}

TEST(Pattern, AssertionsAgreeWithAReference) {
  SplitMix64 random(20261126);
  int compared = 0;
  for (int round = 0; round < 1500; ++round) {
    const std::string pattern = RandomPattern(&random, 2);
    Languages languages;
    const auto language = CompilePattern(pattern, &languages);
    if (!language) continue;
    std::regex reference;
    try {
      reference = std::regex(pattern, std::regex::ECMAScript);
    } catch (const std::regex_error&) {
      continue;
    }
    Automaton automaton(&languages, *language);
    for (int i = 0; i < 8; ++i) {
      std::string text;
      for (uint64_t n = random.Next() % 7; n > 0; --n) text += "ab_ -"[random.Next() % 5];
      EXPECT_EQ(automaton.Matches(text), std::regex_search(text, reference))
          << "/" << pattern << "/ in \"" << text << "\"";
      ++compared;
    }
  }
  EXPECT_GT(compared, 4000);
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
  for (const char* pattern : {"(a)\\1", "(?<=ab)c", "^(?:ab)+(?:a(?<!ba))", "(?:(?!xy)y)*", "a++",
                              "(?m)^a", "a(?m)b", "(?x)a", "(?i)\\p{L}"}) {
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
    // Far above the limit: a busy machine is no failure.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20)) << pattern;
  }
}

// The classic cases: their deterministic automata double with each counted position.
TEST(Pattern, AutomataWithoutBoundAreRefusedByName) {
  for (const char* pattern : {".*a.{30}", "(a|b)*a(a|b){24}", "(.*x)?[a-z]*q[a-z]{26}",
                              "(?:.*a.{18}|.*b.{18}|.*c.{18})", "(.{0,40}a.{0,40}b){6}"}) {
    const auto made = MakePatternConstraint(pattern, Vocabulary());
    ASSERT_FALSE(made.has_value()) << pattern;
    EXPECT_EQ(made.error().code, Code::kResourceExhausted) << made.error().message;
    const std::string schema = std::string(R"({"pattern": "^)") + pattern + R"($"})";
    EXPECT_EQ(RefusalsOf(schema), std::vector<std::string>{"pattern at ''"}) << schema;
    const auto grammar =
        MakeGrammarConstraint(std::string("start: /") + pattern + "/", Vocabulary());
    EXPECT_FALSE(grammar.has_value()) << pattern;
  }
}

TEST(Pattern, LargeAutomataThatAreNoLargerThanTheirPatternsAreKept) {
  for (const char* pattern : {".{0,20000}", "[a-z]{1,63}(\\.[a-z]{1,63}){0,120}", "(a|b)*a(a|b){8}",
                              "([0-9a-f]{4}-){64}"}) {
    EXPECT_TRUE(MakePatternConstraint(pattern, Vocabulary()).has_value()) << pattern;
  }
}

// Counted parts next to any text, or next to similar parts, are merged: each state has one part, or
// few, instead of as many as the count, which took quadratic work.
TEST(Pattern, CountedPartsThatOverlapAreMerged) {
  for (const char* pattern :
       {"[a-z0-9_-]{1,2048}$", "^[a-z]{3,2048}", "^https://([^/]+)/?.{3,1016}$",
        "^[a-z0-9]([-a-z0-9]*[a-z0-9]){0,999}?$", "^(a|b)?[ab]{0,1000}(c|cd|cde)$"}) {
    Languages languages;
    const auto language = CompilePattern(pattern, &languages);
    ASSERT_TRUE(language.has_value());
    const uint64_t before = languages.work();
    EXPECT_TRUE(Automaton::IsNarrow(&languages, *language)) << pattern;
    EXPECT_LT(languages.work() - before, 150'000u) << pattern;
  }
}

TEST(Pattern, MergedPartsHaveTheirTextsAndNoOthers) {
  Languages l;
  const auto set = [&](char c) { return l.Set(CharSet::One(static_cast<uint32_t>(c))); };
  const TermId a = set('a'), tail = set('z');
  // 1 to 2, 3 to 4 and 7 times, and the same before z; 5 and 6 are excluded.
  std::vector<TermId> counted = {l.Repeat(a, 1, 2), l.Repeat(a, 3, 4), l.Repeat(a, 7, 7)};
  for (size_t i = 0; i < 3; ++i) counted.push_back(l.Concat(counted[i], tail));
  Automaton some(&l, l.Union(counted));
  for (int n = 0; n < 10; ++n) {
    const bool in = (n >= 1 && n <= 4) || n == 7;
    EXPECT_EQ(some.Matches(std::string(static_cast<size_t>(n), 'a')), in) << n;
    EXPECT_EQ(some.Matches(std::string(static_cast<size_t>(n), 'a') + "z"), in) << n;
  }
  Automaton found(&l, l.Concat(Languages::kAnyText, l.Concat(l.Repeat(a, 2, 3), tail)));
  EXPECT_TRUE(found.Matches("aaaaz"));
  EXPECT_TRUE(found.Matches("baaz"));
  EXPECT_FALSE(found.Matches("az"));
  EXPECT_FALSE(found.Matches("aabz"));
}

TEST(Pattern, PartsThatASetWithoutEndHoldsAreDropped) {
  Languages l;
  const auto star = [&](const CharSet& set) {
    return l.Repeat(l.Set(set), 0, Languages::kUnbounded);
  };
  const TermId ab = star(CharSet::Of({{'a', 'b'}})), abc = star(CharSet::Of({{'a', 'c'}}));
  const TermId aab = l.Literal("aab"), abd = l.Literal("abd");
  EXPECT_EQ(l.Union({ab, aab}), ab);
  EXPECT_NE(l.Union({ab, abd}), ab);
  EXPECT_EQ(l.Union({ab, abc, Languages::kEmptyText}), abc);
  EXPECT_EQ(l.Intersect({ab, abc}), ab);
  EXPECT_EQ(l.Intersect({abc, aab}), aab);
  EXPECT_EQ(l.Union({abc, l.Intersect({ab, l.Not(aab)})}), abc);
  EXPECT_NE(l.Union({ab, l.Not(aab)}), ab);
  // Beyond ASCII, only a set of everything is known to contain the next character.
  const TermId some = star(CharSet::Of({{'a', 0xE9}})), all = star(CharSet::Of({{'a', 0x10FFFF}}));
  Automaton both(&l, l.Union({some, l.Literal("\u00fc")}));
  EXPECT_TRUE(both.Matches("\u00fc"));
  EXPECT_FALSE(both.Matches("\u00fc\u00fc"));
  EXPECT_EQ(l.Union({all, l.Literal("\u00fc")}), all);
}

// Two small patterns; together their states multiply, and are created on demand.
TEST(Pattern, GrowthOfAMaskIsBounded) {
  Languages languages;
  const auto a = CompilePattern("^[ab]*a[ab]{9}$", &languages);
  const auto b = CompilePattern("^[ab]*b[ab]{10}$", &languages);
  Automaton both(&languages, languages.Intersect({*a, *b}));
  std::string text;
  int32_t state = both.start();
  {
    languages.BoundGrowth(2000);
    const uint64_t before = languages.work();
    size_t steps = 0;
    for (uint32_t random = 1; languages.MayGrow() && steps < 100'000; ++steps) {
      random = random * 1664525 + 1013904223;
      const char c = (random >> 30) % 2 == 0 ? 'a' : 'b';
      const int32_t next = both.Step(state, static_cast<uint8_t>(c));
      if (next == Automaton::kDead) break;
      state = next;
      text += c;
    }
    // One more state may be created when the limit is almost reached.
    EXPECT_LT(languages.work() - before, 20'000u);
    EXPECT_LT(steps, 100'000u);
    languages.BoundGrowth(Languages::kAnyWork);
  }
  // A continuation that was refused under the limit is allowed without it.
  EXPECT_NE(both.Run(text + "ab"), Automaton::kDead);
}

// After a word boundary each character before it is a word character or not, and both continue
// alike: nine of them give 512 combinations, whose unions are built once each. One derivation took
// a thousand.
TEST(Pattern, UnionsOfManyWaysAreMadeOnce) {
  Languages languages;
  const auto language = CompilePattern(R"(.........(.*\d)[a-z\d]{7}\}\bb)", &languages);
  ASSERT_TRUE(language.has_value());
  languages.BoundGrowth(50'000);
  EXPECT_TRUE(Automaton::IsNarrow(&languages, *language));
  EXPECT_TRUE(languages.MayGrow());
}

// Each is small; together they double, and the first common match is long.
TEST(Pattern, WhatIsTooLargeToSearchIsNotSaidToMatchNothing) {
  const auto pattern = [](const char* set, int count) {
    return std::string(".........(.*") + set + ")[a-z0-9]{" + std::to_string(count) + "}[}]b}.,L";
  };
  const std::string a = pattern("[0-9]", 8), b = pattern("[a-f]", 9);
  for (const std::string& each : {a, b}) EXPECT_TRUE(Finds(each, "xxxxxxxxxa1aaaaaaaa}b}.,L"));
  const auto compiled = CompileSchema(
      R"({"type":"string","allOf":[{"pattern":")" + a + R"("},{"pattern":")" + b + R"("}]})", {},
      {.timeout = std::chrono::seconds(2) * kSlowerUnderSanitizers});
  ASSERT_TRUE(compiled.has_value()) << compiled.error().message;
  ASSERT_EQ(compiled->refusals.size(), 1u);
  EXPECT_EQ(compiled->refusals[0].reason,
            "its patterns have more states together than are looked at");
}

// States that are unions of many parts are expensive, however few terms are derived for them.
TEST(Pattern, WideUnionsCountForTheGrowthOfAMask) {
  Languages languages;
  const auto language = CompilePattern("(.*a){300}", &languages);
  ASSERT_TRUE(language.has_value());
  const uint64_t before = languages.work();
  languages.BoundGrowth(200'000);
  EXPECT_FALSE(Automaton::IsNarrow(&languages, *language));
  EXPECT_LT(languages.work() - before, 150'000u);
  EXPECT_FALSE(languages.MayGrow());
}

TEST(Pattern, LookBehindIsExact) {
  struct Row {
    const char* pattern;
    std::vector<const char*> yes, no;
  };
  for (const auto& [pattern, yes, no] : std::vector<Row>{
           {"^[0-9a-z.-]*(?<!\\.)$", {"", "a", ".a", "a.b-"}, {"a.", "."}},
           {"(?<!\\\\)\\$x", {"$x", "a$x", "\\a$x"}, {"\\$x", "x$"}},
           {"(?<=[ab]|c)d", {"ad", "xcd"}, {"d", "xd"}},
           {"\\b(?<!-)foo(?=-)", {"foo-", " foo-"}, {"-foo-", "xfoo-", "foo"}},
           {"^(?:a|-)*(?<!-)b", {"b", "ab", "-ab"}, {"-b", "a-b"}},
           {"^[a-z.]+(?<!\\.git)$", {"a.gi", "git", "a.gitx"}, {"a.git", ".git", "a.git.git"}},
           {"^(?!x)[a-z]*(?<=ab|c)d$", {"abd", "cd", "yabd"}, {"d", "bd", "xcd"}},
           {"^a+(?<=aa)\\b", {"aa", "aaa-"}, {"a", "aab"}},
       }) {
    for (const char* text : yes) EXPECT_TRUE(Finds(pattern, text)) << pattern << " " << text;
    for (const char* text : no) EXPECT_FALSE(Finds(pattern, text)) << pattern << " " << text;
  }
}

TEST(Pattern, AssertionsThatLookNoFurtherThanARoundAreRepeatedWithoutEnd) {
  const char* label = "^(((?!-)[A-Za-z0-9-]{0,4}[A-Za-z0-9])\\.)+x$";
  for (const char* text : {"a.x", "a-b.c.x"}) EXPECT_TRUE(Finds(label, text)) << text;
  for (const char* text : {"-a.x", "a-.x", "a.-b.x"}) EXPECT_FALSE(Finds(label, text)) << text;
  EXPECT_TRUE(Finds("^((?![:*$])[ -~])+$", "abc"));
  EXPECT_FALSE(Finds("^((?![:*$])[ -~])+$", "ab:"));
  EXPECT_TRUE(Finds("^(?:(?!-)[a-z-]{1,5}(?<!-)\\.)*\\bx", "a-b.x"));
  EXPECT_FALSE(Finds("^(?:(?!-)[a-z-]{1,5}(?<!-)\\.)*\\bx", "a-.x"));
  // A repeated assertion holds once, or not at all.
  EXPECT_FALSE(Finds("^(?!a)+[ab]$", "a"));
  EXPECT_TRUE(Finds("^(?!a)*[ab]$", "a"));
}

TEST(Pattern, SurrogatesThatStandAloneMatchNothing) {
  const char* pattern = "^[\\uD800\\uDBFF-\\uDC00\\uDFFFa]+$";
  EXPECT_TRUE(Finds(pattern, "aa"));
  for (const char* text : {"-", "\U0001F600"}) EXPECT_FALSE(Finds(pattern, text)) << text;
}

TEST(Pattern, FlagsOfCaseAndLines) {
  EXPECT_TRUE(Finds("(?i)^abc$", "aBC"));
  EXPECT_FALSE(Finds("^abc$", "aBC"));
  EXPECT_TRUE(Finds("^(?i:A)b$", "ab"));
  EXPECT_FALSE(Finds("^(?i:A)b$", "aB"));
  EXPECT_FALSE(Finds("(?i)^(?-i:a)$", "A"));
  EXPECT_FALSE(Finds("(?i)^[^a-z]$", "K"));
  EXPECT_TRUE(Finds("(?i)^[À-Þ]$", "é"));
  EXPECT_TRUE(Finds("(?i)^s\\u{3C3}$", "\u017F\u03C2"));  // long s, final sigma
  EXPECT_FALSE(Finds("(?i)^i$", "\u0131"));
  EXPECT_TRUE(Finds("(?s)^a.b$", "a\nb"));
  EXPECT_TRUE(Finds("^(?s)a.b$", "a\nb"));
  EXPECT_FALSE(Finds("^(?!(?i)(stop|help)$)[ \\S]+$", "Stop"));
  EXPECT_TRUE(Finds("^(?:x(?i)a|b)c$", "Bc"));  // to the end of the group around it
  EXPECT_FALSE(Finds("^(?:x(?i)a|b)c$", "bC"));
  EXPECT_FALSE(Finds("^a.b$", "a\nb"));
  EXPECT_TRUE(Finds("\\A[a-z]+\\Z", "abc"));
  EXPECT_FALSE(Finds("\\A[a-z]+\\Z", "abc1"));
}

}  // namespace
}  // namespace aisp
