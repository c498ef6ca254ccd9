// A forced run is the only possible continuation, byte by byte; and how it is likely to be
// tokenized.
#include "constrain/forced_run.h"

#include <filesystem>

#include "constrain/grammar_constraint.h"
#include "constrain/text_constraint.h"
#include "tests/constrain/random_schema.h"
#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

constexpr size_t kFar = 64;

std::vector<uint8_t> Following(Matcher* matcher) {
  std::vector<uint8_t> out;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    if (matcher->AdvanceBytes({&c, 1}) != 1) continue;
    matcher->Rewind(1);
    out.push_back(static_cast<uint8_t>(byte));
  }
  return out;
}

// Inside a string an escape may always replace a character, and outside of it blanks may come where
// they are free: neither makes a different text.
enum class Free : uint8_t { kNothing, kEscapes, kEscapesAndBlanks };

// The next bytes that lead to different texts.
std::vector<uint8_t> Ways(Matcher* matcher, Free free) {
  std::vector<uint8_t> ways = Following(matcher);
  if (free == Free::kNothing || ways.size() == 1) return ways;
  std::erase_if(ways, [free](uint8_t byte) {
    const bool blank = byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
    return byte == '\\' || (blank && free == Free::kEscapesAndBlanks);
  });
  return ways;
}

// Takes random steps and checks each position; returns how many bytes were forced.
size_t CheckRuns(Constraint* constraint, Free free, uint32_t seed, const std::string& what) {
  std::mt19937 random(seed);
  const auto matcher = constraint->NewMatcher();
  std::string text;
  size_t forced = 0;
  for (int step = 0; step < 24; ++step) {
    const std::string run = matcher->Forced(kFar);
    for (size_t i = 0; i < run.size(); ++i) {
      const auto ways = Ways(matcher.get(), free);
      const auto byte = static_cast<uint8_t>(run[i]);
      EXPECT_EQ(ways, std::vector<uint8_t>{byte}) << what << "\nafter " << text << run.substr(0, i);
      if (ways.size() != 1 || matcher->AdvanceBytes(run.substr(i, 1)) != 1) return forced;
    }
    if (run.size() < kFar && free != Free::kEscapesAndBlanks && !matcher->IsWhole()) {
      EXPECT_NE(Ways(matcher.get(), free).size(), 1u) << what << "\nbehind " << text << run;
    }
    matcher->Rewind(run.size());
    forced += run.size();
    const auto next = Following(matcher.get());
    if (next.empty()) break;
    const char byte = static_cast<char>(next[random() % next.size()]);
    EXPECT_EQ(matcher->AdvanceBytes({&byte, 1}), 1u);
    text += byte;
  }
  return forced;
}

TEST(ForcedRun, OfARandomSchemaIsTheOnlyTextThatMayFollow) {
  size_t forced = 0;
  for (uint32_t seed = 1; seed <= 400 && !testing::Test::HasFailure(); ++seed) {
    const bool compact = seed % 2 == 0;
    const std::string schema = RandomSchema(seed).Any(2);
    auto compiled = CompileSchema(schema, {}, {});
    if (!compiled || compiled->grammar == nullptr || !compiled->grammar->HasValues()) continue;
    const auto constraint =
        MakeJsonConstraint(std::move(compiled->grammar),
                           compact ? Whitespace::kCompact : Whitespace::kFlexible, Vocabulary());
    forced += CheckRuns(constraint.get(), compact ? Free::kEscapes : Free::kEscapesAndBlanks, seed,
                        schema);
  }
  EXPECT_GT(forced, 2000u);
}

TEST(ForcedRun, OfAPatternIsTheOnlyTextThatMayFollow) {
  size_t forced = 0;
  for (const char* pattern :
       {"(yes|yesterday|yet)", "a{3,5}bc", "[ab]cd(ef)?gh", "\\d{2}-\\d{2}", "(fox|föx|fux) runs",
        "x*y", "[é-ü]nd", "lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do"}) {
    const auto constraint = MakePatternConstraint(pattern, Vocabulary());
    ASSERT_TRUE(constraint.has_value()) << pattern;
    for (uint32_t seed = 1; seed <= 8; ++seed)
      forced += CheckRuns(constraint->get(), Free::kNothing, seed, pattern);
  }
  EXPECT_GT(forced, 500u);
}

TEST(ForcedRun, OfAGrammarIsTheOnlyTextThatMayFollow) {
  size_t forced = 0;
  for (const char* grammar :
       {"root ::= \"name: \" [a-z]+ \";\" root?", "root ::= \"(\" root \")\" | \"lambda\"",
        "root ::= item (\", \" item)*\nitem ::= \"one\" | \"other\"",
        "root ::= \"SELECT \" (\"a\" | \"b\") \" FROM t WHERE \" [0-9]+"}) {
    const auto constraint = MakeGrammarConstraint(grammar, Vocabulary());
    ASSERT_TRUE(constraint.has_value()) << grammar;
    for (uint32_t seed = 1; seed <= 20; ++seed)
      forced += CheckRuns(constraint->get(), Free::kNothing, seed, grammar);
  }
  EXPECT_GT(forced, 1000u);
}

TEST(ForcedRun, LeavesTheMatcherAsItWas) {
  const auto constraint =
      Compile(R"({"type":"object","properties":{"name":{"const":"fox"}},"required":["name"],
                  "additionalProperties":false})");
  const auto matcher = constraint->NewMatcher();
  EXPECT_EQ(ForcedText(matcher.get()), R"({"name":"fox"})");
  EXPECT_EQ(ForcedText(matcher.get(), 9), R"({"name":")");
  EXPECT_EQ(matcher->AdvanceBytes(R"({"na)"), 4u);
  EXPECT_EQ(ForcedText(matcher.get()), R"(me":"fox"})");
  EXPECT_EQ(matcher->AdvanceBytes(R"(me":"fox"})"), 10u);
  EXPECT_TRUE(matcher->IsWhole());
  EXPECT_EQ(ForcedText(matcher.get()), "");
}

TEST(ForcedRun, EndsWithAWholeCodePoint) {
  const auto constraint = MakePatternConstraint("ab[éü]", Vocabulary());  // one lead byte for both
  ASSERT_TRUE(constraint.has_value());
  const auto matcher = (*constraint)->NewMatcher();
  EXPECT_EQ(matcher->Forced(10), "ab\xC3");
  EXPECT_EQ(ForcedText(matcher.get()), "ab");
}

std::unique_ptr<Tokenizer> Story() {
  auto tokenizer = Tokenizer::Load(std::string(AISP_SOURCE_DIR) + "/models/story-7m");
  EXPECT_TRUE(tokenizer.has_value());
  return std::move(*tokenizer);
}

std::string TextOf(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  std::string text;
  for (const TokenId id : ids) text += tokenizer.IdToPiece(id);
  return text;
}

TEST(ForcedRun, IsSpelledAsTheTokenizerWritesItInsideAText) {
  const auto tokenizer = Story();
  const std::string text = R"(lantern":{"bridge":)";
  EXPECT_EQ(SpellInside(*tokenizer, text), *tokenizer->Encode(text, false));
  EXPECT_TRUE(SpellInside(*tokenizer, "\xC3").empty());
  EXPECT_TRUE(SpellInside(*tokenizer, "").empty());
}

class Spelling : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Tokenizers, Spelling,
                         testing::Values("llama-3", "llama-2-spm", "mistral-v3-spm", "qwen2",
                                         "phi-3", "gpt-2"),
                         [](const auto& made) {
                           std::string name = made.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(Spelling, BringsJustTheBytesOfTheRunWhateverTheTokenizerPutsBeforeAText) {
  const auto folder = std::filesystem::path(AISP_SHARED_DIR) / "tokenizers" / GetParam();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder << "; set AISP_SHARED_DIR";
  const auto tokenizer = Tokenizer::Load(folder.string());
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  for (const char* text : {R"({"temperature":)", R"(ature_celsius":)", R"(,"humidity": )", " falls",
                           "\n  \"name\": \"", "\n", "}}", "é}", "10.5"}) {
    const auto ids = SpellInside(**tokenizer, text);
    EXPECT_EQ(TextOf(**tokenizer, ids), text);
    EXPECT_LT(ids.size(), std::string_view(text).size() + 1);
  }
}

TEST(RunBook, SpellsARunAsItWasDrawnLastAndElseAsTheTokenizerDoes) {
  const auto tokenizer = Story();
  RunBook book(tokenizer.get());
  const auto usual = SpellInside(*tokenizer, "name\":");
  EXPECT_EQ(book.Spell("", "name\":"), usual);
  const std::vector<TokenId> drawn{7, 8, 9};
  book.Note("", "name\":", drawn);
  EXPECT_EQ(book.Spell("", "name\":"), drawn);
  EXPECT_EQ(book.Spell("another tenant", "name\":"), usual);
}

TEST(RunBook, ForgetsWhatWasNotUsedForLong) {
  const auto tokenizer = Story();
  RunBook book(tokenizer.get(), 8);
  const std::vector<TokenId> drawn{7};
  book.Note("", "kept", drawn);
  book.Note("", "lost", drawn);
  for (int i = 0; i < 40; ++i) {
    book.Spell("", "run" + std::to_string(i));
    EXPECT_EQ(book.Spell("", "kept"), drawn);
  }
  EXPECT_NE(book.Spell("", "lost"), drawn);
}

TEST(RunFollower, LearnsHowARunIsDrawnWithWhatItsLastTokenHasBeyondIt) {
  const auto tokenizer = Story();
  const auto book = std::make_shared<RunBook>(tokenizer.get());
  RunFollower first(book, "");
  std::vector<TokenId> taken{1};
  first.Next("name\":", taken, 8);
  taken.push_back(2);  // "na"
  first.Next("me\":", taken, 8);
  first.Next("me\":", taken, 8);  // asked twice
  taken.push_back(3);             // "me\": \""
  EXPECT_TRUE(first.Next("", taken, 8).empty());
  RunFollower second(book, "");
  EXPECT_EQ(second.Next("name\":", {}, 8), (std::vector<TokenId>{2, 3}));
  EXPECT_EQ(second.Next("name\":", {}, 1), std::vector<TokenId>{2});
  RunFollower third(book, "");
  EXPECT_EQ(third.Next("me\":", {}, 8), std::vector<TokenId>{3});
}

}  // namespace
}  // namespace aisp
