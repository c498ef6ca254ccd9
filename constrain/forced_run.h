// Runs of text that a constraint forces, in tokens: what a sequence may be proposed to go on with.
//
// The text is forced, its spelling in tokens is not: `":` or `":"` may be one token, and where
// blanks are free the model says which. So a run is spelled as such a run was drawn last, and as
// the tokenizer writes it where none was. A wrong guess costs a row of a step, never a token.
//
// A RunBook belongs to a tokenizer and is shared by all sequences, of any thread; what they drew is
// kept apart by cache scope, so that no tenant's answers show in another's latency. A RunFollower
// is one sequence's, on its thread.
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

// Bytes of a run that are looked at, and tokens of one that are kept.
inline constexpr size_t kLongestRun = 256, kMostRunTokens = 32;

// What `matcher` forces, from one part of a plan into the next. The matcher is as it was.
std::string ForcedText(Matcher* matcher, size_t limit = kLongestRun);

// As `tokenizer` writes `text` in the middle of another; empty where it would not write just these
// bytes.
std::vector<TokenId> SpellInside(const Tokenizer& tokenizer, std::string_view text);

class RunBook {
 public:
  // Keeps at most twice `generation` spellings. The tokenizer outlives it.
  explicit RunBook(const Tokenizer* tokenizer, size_t generation = 4096)
      : tokenizer_(*tokenizer), generation_(generation) {}

  std::vector<TokenId> Spell(std::string_view scope, std::string_view run);
  // The run was drawn as `tokens`; what came behind it in its last token belongs to them.
  void Note(std::string_view scope, std::string_view run, std::span<const TokenId> tokens);

 private:
  using Spellings = std::unordered_map<Hash128, std::vector<TokenId>>;
  void Keep(const Hash128& key, std::vector<TokenId> tokens);

  const Tokenizer& tokenizer_;
  const size_t generation_;
  std::mutex mutex_;
  Spellings young_, old_;  // what was not used since `young_` began is dropped when it is full
};

class RunFollower {
 public:
  RunFollower(std::shared_ptr<RunBook> book, std::string scope)
      : book_(std::move(book)), scope_(std::move(scope)) {}

  // At most `limit` tokens that are likely to spell `run`, which is forced behind `taken`, the
  // tokens of the answer so far. To be called at every step: it learns from what came since.
  std::vector<TokenId> Next(std::string_view run, std::span<const TokenId> taken, size_t limit);

 private:
  struct Begun {
    std::string run;
    size_t at = 0;  // tokens taken before it
  };

  const std::shared_ptr<RunBook> book_;
  const std::string scope_;
  std::vector<Begun> begun_;  // one run, and what was left of it behind each of its steps
};

}  // namespace aisp
