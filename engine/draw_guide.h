// DrawGuide: which tokens a constrained sequence may draw next. The engine knows no grammar; the
// caller that adds the sequence supplies it. One per sequence, called on the engine thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace aisp {

class DrawGuide {
 public:
  virtual ~DrawGuide() = default;
  // One bit per token, 32 per word; valid until the next call. At least one bit is set unless
  // AtEnd().
  virtual std::span<const uint32_t> Allowed() = 0;
  // Advances past a token that was drawn, or emitted before the sequence came here. False: the
  // token is not allowed.
  virtual bool Take(TokenId token) = 0;
  // Undoes the last `count` tokens.
  virtual void Rewind(size_t count) = 0;
  // The text is complete; only its end may follow.
  virtual bool AtEnd() = 0;
  // At most `limit` tokens that spell the only text that may follow. They are draft tokens: other
  // tokens may spell the same text, with blanks in between. Not to be called between Take and
  // Rewind.
  virtual std::vector<TokenId> Forced(size_t /*limit*/) { return {}; }
};

}  // namespace aisp
