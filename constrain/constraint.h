// Constraint and Matcher: the face of constrain/ towards servers and engines.
//
// A Constraint is a compiled schema, pattern, choice or grammar together with a vocabulary; it is
// shared, and locks itself (its automata grow as they are walked). A Matcher is the place of one
// sequence in it: it takes tokens, goes back over tokens, and says which tokens may follow. One
// thread at a time per matcher; any number of matchers per constraint.
//
// Whatever a matcher took can be completed: Mask never leaves nothing, unless the text is whole and
// only the end may follow.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "constrain/token_trie.h"

namespace aisp {

class Matcher {
 public:
  virtual ~Matcher() = default;

  // False, and nothing changed, when `token` may not follow.
  virtual bool Advance(TokenId token) = 0;
  // The same with the bytes of a text; how many of them were taken: all, or up to the first that
  // may not follow (then nothing changed).
  virtual size_t AdvanceBytes(std::string_view bytes) = 0;
  // Takes back the last `count` calls of Advance and AdvanceBytes.
  virtual void Rewind(size_t count) = 0;
  // The text is whole: the sequence may end here.
  virtual bool IsWhole() = 0;
  // Every token that may follow now; `mask` has the vocabulary's size. End tokens are the caller's
  // affair (IsWhole).
  virtual void Mask(TokenMask* mask) = 0;
  // The bytes that must come next whatever is chosen, at most `limit`.
  virtual std::string Forced(size_t limit) = 0;

  // One way to make the text whole, as short as is known: what an answer that runs out of tokens
  // ends with.
  struct Ending {
    std::vector<TokenId> tokens;  // empty: it is whole
    // By how many tokens the ending may grow, about, when some other token is taken first.
    size_t growth = 0;
  };
  // Absent: none of at most `limit` bytes is known, which says nothing of the text.
  virtual std::optional<Ending> FindEnding(size_t /*limit*/) { return std::nullopt; }
  // In a text that is whole and of which most tokens leave it so: takes those out of `mask` (as
  // Mask gave it) that do not. False, and nothing changed, in any other.
  virtual bool KeepWhole(TokenMask* /*mask*/) { return false; }
};

class Constraint {
 public:
  virtual ~Constraint() = default;
  virtual std::unique_ptr<Matcher> NewMatcher() = 0;
  // What it holds in memory, about.
  virtual size_t bytes() const = 0;
};

}  // namespace aisp
