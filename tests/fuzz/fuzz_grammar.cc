// Grammars: a grammar up to a line of dashes, then a text. What the matcher accepts must be
// complete or continuable, rolling back must restore the state, masks must agree with what is
// accepted, and forced runs must be the only continuation.
#include "common/check.h"
#include "constrain/grammar_constraint.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

std::shared_ptr<const TokenTrie> Bytes() {
  std::vector<std::string> pieces;
  for (int b = 0; b < 256; ++b) pieces.emplace_back(1, static_cast<char>(b));
  for (const char* more : {"ab", "aaa", "\"a", "  ", "a\" b", "))"}) pieces.emplace_back(more);
  return std::make_shared<const TokenTrie>(pieces);
}

void CheckForced(Matcher* matcher) {
  const std::string run = matcher->Forced(32);
  for (const char c : run) {
    AISP_CHECK(!matcher->IsWhole());
    for (int byte = 0; byte < 256; ++byte) {
      const char other = static_cast<char>(byte);
      AISP_CHECK(other == c || matcher->AdvanceBytes({&other, 1}) == 0);
    }
    AISP_CHECK(matcher->AdvanceBytes({&c, 1}) == 1);
  }
  matcher->Rewind(run.size());
}

}  // namespace

void FuzzOne(std::string_view input) {
  static const std::shared_ptr<const TokenTrie> kTrie = Bytes();
  const size_t line = input.find("\n---\n");
  const std::string_view grammar = input.substr(0, std::min<size_t>(line, 400));
  const std::string_view text =
      line == std::string_view::npos ? "" : input.substr(line + 5).substr(0, 64);
  const auto constraint = MakeGrammarConstraint(grammar, kTrie);
  if (!constraint) {
    AISP_CHECK(!constraint.error().message.empty());
    return;
  }
  const auto matcher = (*constraint)->NewMatcher();
  TokenMask mask(kTrie->vocabulary()), again(kTrie->vocabulary());
  for (size_t i = 0; i <= text.size(); ++i) {
    CheckForced(matcher.get());
    matcher->Mask(&mask);
    for (TokenId id = 256; id < static_cast<TokenId>(kTrie->vocabulary()); ++id) {
      const bool taken = matcher->Advance(id);
      if (taken) matcher->Rewind(1);
      AISP_CHECK(taken == mask.Has(static_cast<size_t>(id)));
    }
    matcher->Mask(&again);
    AISP_CHECK(std::equal(mask.words().begin(), mask.words().end(), again.words().begin()));
    if (i == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[i]);
    AISP_CHECK(matcher->Advance(byte) == mask.Has(byte));
  }
}

}  // namespace aisp
