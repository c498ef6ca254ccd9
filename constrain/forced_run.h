// Forced runs: text that a constraint forces, as tokens that can be proposed as draft tokens.
//
// The text is forced but its tokenization is not: `":` and `":"` may be single tokens, and blanks
// may be free. So a run is tokenized as it was last drawn or, if never seen, as the tokenizer
// writes it. A wrong guess costs a row of a step and never changes the output.
//
// A RunBook belongs to a tokenizer and is shared by all sequences, on any thread. It is kept apart
// by cache scope, so that latency reveals nothing about other tenants' answers. A RunFollower
// belongs to one sequence and its thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/hash.h"
#include "constrain/constraint.h"
#include "text/tokenizer.h"

namespace aisp {

// Limits: bytes of a run, and tokens of its tokenization.
inline constexpr size_t kLongestRun = 256, kMostRunTokens = 32;

// The text that `matcher` forces, across parts of a plan. Leaves the matcher unchanged.
std::string ForcedText(Matcher* matcher, size_t limit = kLongestRun);

// Tokenizes `text` as it would be within another text; empty if the result would have other bytes.
std::vector<TokenId> SpellInside(const Tokenizer& tokenizer, std::string_view text);

class RunBook {
 public:
  // Keeps at most twice `generation` runs. The tokenizer outlives it.
  explicit RunBook(const Tokenizer* tokenizer, size_t generation = 4096)
      : tokenizer_(*tokenizer), generation_(generation) {}

  std::vector<TokenId> Spell(std::string_view scope, std::string_view run);
  // Records that the run was drawn as `tokens`; the last token may include what followed the run.
  void Note(std::string_view scope, std::string_view run, std::span<const TokenId> tokens);

 private:
  using Spellings = std::unordered_map<Hash128, std::vector<TokenId>>;
  void Keep(const Hash128& key, std::vector<TokenId> tokens);

  const Tokenizer& tokenizer_;
  const size_t generation_;
  std::mutex mutex_;
  Spellings young_, old_;  // two generations: entries unused since `young_` began are dropped when
                           // it is full
};

class RunFollower {
 public:
  RunFollower(std::shared_ptr<RunBook> book, std::string scope)
      : book_(std::move(book)), scope_(std::move(scope)) {}

  // At most `limit` tokens that probably spell `run`, which is forced after `taken`, the answer so
  // far. Call it at every step: it learns from the tokens drawn since.
  std::vector<TokenId> Next(std::string_view run, std::span<const TokenId> taken, size_t limit);

 private:
  struct Begun {
    std::string run;
    size_t at = 0;  // number of tokens before it
  };

  const std::shared_ptr<RunBook> book_;
  const std::string scope_;
  std::vector<Begun> begun_;  // one run, with its remainder after each step
};

}  // namespace aisp
