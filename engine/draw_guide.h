// DrawGuide: what a constrained sequence may draw next. The engine knows no grammar: whoever adds
// the sequence hands one in. It belongs to that sequence and is called on the engine thread alone.
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
  // One bit a token, 32 to a word; valid until the next call. At least one bit is set unless
  // AtEnd().
  virtual std::span<const uint32_t> Allowed() = 0;
  // A token that was drawn, or that was emitted before the sequence came here. False: it may not
  // follow.
  virtual bool Take(TokenId token) = 0;
  // Takes back the last `count` tokens that were taken.
  virtual void Rewind(size_t count) = 0;
  // The text is whole and nothing but its end may follow.
  virtual bool AtEnd() = 0;
  // At most `limit` tokens that spell what comes next as far as only one text may. They are a
  // proposal: other tokens may spell the same, and blanks may stand between. Not to be called
  // between Take and Rewind.
  virtual std::vector<TokenId> Forced(size_t /*limit*/) { return {}; }
};

}  // namespace aisp
