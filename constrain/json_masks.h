// JsonMasks: computes which tokens may follow a state of a JsonMachine.
//
// Inside a string nearly all tokens may follow, depending only on the automaton's state, so that
// part is computed once per state and cached. Tokens that close the string are grouped by what
// follows the quote, and only these few suffixes are checked. Elsewhere few tokens may follow, and
// a traversal of the trie finds them, skipping all that begin with a forbidden byte. The cache is
// bounded. One thread at a time.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "constrain/json_machine.h"
#include "constrain/token_trie.h"

namespace aisp {

// Computes what all schemas share, to save the first request from it.
void WarmUp(const std::shared_ptr<const TokenTrie>& trie);

class JsonMasks {
 public:
  JsonMasks(JsonMachine* machine, std::shared_ptr<const TokenTrie> trie);

  // Computes trie.any_text().
  void WarmUpAnyText();
  void Compute(const JsonState& state, Arena* arena, TokenMask* mask);
  size_t bytes() const { return text_masks_.size() * (trie_->vocabulary() / 8 + 16384); }

 private:
  // A string alternative with length limits.
  struct Limits {
    int32_t min_more = 0, max_more = kNoLimit;  // code points
    int32_t slack = 0;                          // any text can be finished within so many code
                                                // points
  };

  void Walk(const JsonState& state, uint32_t begin, uint32_t end, Arena* arena, TokenMask* mask);
  void TextTokens(const JsonState& state, Arena* arena, TokenMask* mask);
  static bool FindSlack(const Automaton& automaton, Limits* limits);
  void FreeTokens(const JsonState& state, const ScalarAlt& alt, const Limits& limits, Arena* arena,
                  TokenMask* mask);
  void TokensNearLimit(const JsonState& state, const TextMask& text, const Limits& limits,
                       int32_t sure, Arena* arena, TokenMask* mask);
  void LimitedTokens(const JsonState& state, const ScalarAlt& alt, const Limits& limits,
                     Arena* arena, TokenMask* mask);
  // Sorted names in [lo, hi), equal up to `depth`: follows them and the trie together from `node`,
  // where the machine is in `at`. Results at their closing quotes replace those in the mask.
  void NameTokens(const std::vector<std::string_view>& names, size_t lo, size_t hi, size_t depth,
                  int32_t node, const JsonState& at, Arena* arena, TokenMask* mask);
  // The names known to all alternatives, without duplicates.
  void KnownNames(const JsonState& state, const std::string& prefix, Arena* arena, TokenMask* mask);
  // Checks one by one the tokens that spell `rest` or a prefix of it, since it is used up or has
  // its own rules.
  void Correct(const JsonState& state, std::string_view rest, Arena* arena, TokenMask* mask);
  void CorrectSpelled(const JsonState& state, std::string_view rest, Arena* arena, TokenMask* mask);
  // Sets the token as the machine decides.
  void Ask(const JsonState& state, int32_t token, Arena* arena, TokenMask* mask);
  bool Take(const JsonState& state, std::string_view bytes, Arena* arena, JsonState* to);
  const TextMask& TextMaskOf(Automaton* automaton, int32_t state);
  void EscapedTokens(Automaton* automaton, int32_t state, uint32_t backslash, TextMask* out);
  // Marks the suffixes that may follow once the string is closed (by node of the suffix trie).
  void AllowSuffixes(const JsonState& closed, Arena* arena);
  void AddClosing(int32_t quote, TokenMask* mask);

  JsonMachine& machine_;
  std::shared_ptr<const TokenTrie> trie_;
  std::unordered_map<uint64_t, std::unique_ptr<TextMask>> text_masks_;
  std::unique_ptr<TextMask> cut_text_;  // cut short by GrowthBound, so not cached
  std::unordered_map<const Automaton*, uint32_t> automaton_ids_;
  std::vector<uint8_t> suffix_allowed_;
  Arena scratch_;
  std::vector<JsonState> walk_states_;
  std::vector<Arena::Mark> walk_marks_;
  std::vector<int32_t> text_states_, text_points_;
};

}  // namespace aisp
