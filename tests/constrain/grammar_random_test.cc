// Masks of random grammars: for every token the mask must agree with the parser.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>

#include "constrain/grammar_constraint.h"
#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

constexpr std::string_view kLetters = "ab(),1";

// Rules of random alternatives over few letters, so that they are ambiguous, recursive on all sides
// and empty more often than grammars that people write.
class RandomGrammar {
 public:
  explicit RandomGrammar(uint32_t seed) : random_(seed) {}

  std::string Text() {
    static constexpr std::string_view kNames[] = {"root", "p", "q", "r", "s"};
    std::string out;
    const size_t count = 2 + Draw(3);
    for (size_t rule = 0; rule < count; ++rule) {
      out += std::string(kNames[rule]) + " ::= " + Choice(count, 0) + "\n";
    }
    return out;
  }

 private:
  size_t Draw(size_t below) { return random_() % below; }
  std::string Choice(size_t rules, int depth) {
    std::string out = Sequence(rules, depth);
    for (size_t more = Draw(3); more > 1; --more) out += " | " + Sequence(rules, depth);
    return out;
  }
  std::string Sequence(size_t rules, int depth) {
    if (Draw(12) == 0) return "\"\"";
    std::string out = Item(rules, depth);
    for (size_t more = Draw(3); more > 0; --more) out += " " + Item(rules, depth);
    return out;
  }
  std::string Item(size_t rules, int depth) {
    static constexpr std::string_view kPostfixes[] = {"", "", "", "", "?", "*", "+", "{0,2}"};
    return Atom(rules, depth) + std::string(kPostfixes[Draw(std::size(kPostfixes))]);
  }
  std::string Atom(size_t rules, int depth) {
    static constexpr std::string_view kAtoms[] = {"[ab]",  "[^a]",  "[a1]+", "\"ab\"",     "\"(\"",
                                                  "\")\"", "\",\"", "\"é\"", "[a-b,]{1,3}"};
    const size_t kind = Draw(10);
    if (kind < 4) return std::string("\"") + kLetters[Draw(kLetters.size())] + "\"";
    if (kind < 6) return std::string(kAtoms[Draw(std::size(kAtoms))]);
    if (kind < 7 && depth < 1) return "(" + Choice(rules, depth + 1) + ")";
    static constexpr std::string_view kNames[] = {"root", "p", "q", "r", "s"};
    return std::string(kNames[Draw(rules)]);
  }

  std::mt19937 random_;
};

std::vector<std::string> RandomPieces() {
  std::mt19937 random(7);
  std::set<std::string> out = {"é",     "aé",       "é)",   "\xC3", "\xA9",
                               "\xA9(", "aaaaaaaa", "((((", "))))"};
  while (out.size() < 90) {
    std::string piece;
    for (size_t n = 2 + random() % 5; n > 0; --n) piece += kLetters[random() % kLetters.size()];
    out.insert(piece);
  }
  return {out.begin(), out.end()};
}

// Takes random steps until only the end may follow; false where nothing may.
bool Walk(Constraint* constraint, const std::vector<std::string>& pieces, uint32_t seed,
          const std::string& grammar) {
  const size_t vocabulary = 256 + pieces.size();
  std::mt19937 random(seed);
  const auto matcher = constraint->NewMatcher();
  TokenMask mask(vocabulary);
  std::string text;
  for (int step = 0; step < 12 && text.size() < 16; ++step) {
    matcher->Mask(&mask);
    std::vector<TokenId> allowed;
    for (TokenId id = 0; id < static_cast<TokenId>(vocabulary); ++id) {
      const bool taken = matcher->Advance(id);
      if (taken) matcher->Rewind(1);
      EXPECT_EQ(mask.Has(static_cast<size_t>(id)), taken)
          << grammar << "after '" << text << "', token " << id;
      // Long tokens more often: they cross rules.
      if (taken) allowed.insert(allowed.end(), id >= 256 ? 4 : 1, id);
    }
    if (testing::Test::HasFailure()) return false;
    if (allowed.empty()) return matcher->IsWhole();
    const TokenId id = allowed[random() % allowed.size()];
    if (!matcher->Advance(id)) return false;
    text +=
        id < 256 ? std::string(1, static_cast<char>(id)) : pieces[static_cast<size_t>(id) - 256];
  }
  return true;
}

TEST(RandomGrammar, MasksSayWhatTheParseSays) {
  const auto pieces = RandomPieces();
  const auto trie = Vocabulary(pieces);
  const char* many = std::getenv("AISP_RANDOM_GRAMMARS");  // how many, for long runs
  const uint32_t count = many != nullptr ? static_cast<uint32_t>(std::atoi(many)) : 250;
  uint32_t compiled = 0;
  for (uint32_t seed = 1; seed <= count; ++seed) {
    const std::string grammar = RandomGrammar(seed).Text();
    const auto constraint = MakeGrammarConstraint(grammar, trie);
    if (!constraint) continue;  // no text fits
    ++compiled;
    // Later texts use the caches that earlier ones filled.
    for (uint32_t walk = 0; walk < 2; ++walk)
      ASSERT_TRUE(Walk(constraint->get(), pieces, seed + walk, grammar)) << grammar;
  }
  EXPECT_GT(compiled, count / 2);
}

}  // namespace
}  // namespace aisp
