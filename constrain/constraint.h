// Constraint and Matcher: the interface of constrain/ to servers and engines.
//
// A Constraint is a compiled schema, pattern, choice or grammar for a vocabulary. It is shared and
// locks itself, since its automata are built lazily. A Matcher is one sequence's position in it: it
// consumes tokens, rewinds, and computes which tokens may follow. One thread at a time per matcher;
// any number of matchers per constraint.
//
// Whatever a matcher has consumed can be completed: a mask is never empty, unless the text is
// complete and only an end token may follow.
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

  // False, without a change, when `token` may not follow.
  virtual bool Advance(TokenId token) = 0;
  // Consumes the bytes of a text. Returns how many were allowed: all of them, or up to the first
  // that may not follow; in the latter case nothing changes.
  virtual size_t AdvanceBytes(std::string_view bytes) = 0;
  // Undoes the last `count` calls of Advance and AdvanceBytes.
  virtual void Rewind(size_t count) = 0;
  // Whether the text is complete, so that the sequence may end here.
  virtual bool IsWhole() = 0;
  // Sets every token that may follow; `mask` has the vocabulary's size. End tokens are up to the
  // caller (IsWhole).
  virtual void Mask(TokenMask* mask) = 0;
  // The bytes that must come next, whatever is chosen; at most `limit`.
  virtual std::string Forced(size_t limit) = 0;

  // A short way to complete the text, for an answer that runs out of tokens.
  struct Ending {
    std::vector<TokenId> tokens;  // empty: the text is complete
    // Estimate of the tokens by which the ending grows when another token is consumed first.
    size_t growth = 0;
  };
  // nullopt when no ending of at most `limit` bytes is known; there may still be one.
  virtual std::optional<Ending> FindEnding(size_t /*limit*/) { return std::nullopt; }
  // For a complete text that most tokens keep complete: removes from `mask` (from Mask) those that
  // do not. False, without a change, for any other text.
  virtual bool KeepWhole(TokenMask* /*mask*/) { return false; }
};

class Constraint {
 public:
  virtual ~Constraint() = default;
  virtual std::unique_ptr<Matcher> NewMatcher() = 0;
  // Approximate memory in bytes.
  virtual size_t bytes() const = 0;
};

}  // namespace aisp
