// The syntax tree of a pattern, and its parser. For constrain/ only. Plain values.
#pragma once

#include <string_view>
#include <vector>

#include "common/result.h"
#include "constrain/char_set.h"

namespace aisp {

struct PatternNode {
  enum class Kind : uint8_t {
    kSet,         // one code point of `set`
    kSequence,    // children one after another
    kChoice,      // one of the children
    kRepeat,      // children[0], min to max times (max -1: without end)
    kBegin,       // ^
    kEnd,         // $
    kBoundary,    // \b, negated: \B
    kLookAhead,   // children[0] follows; negated: does not
    kLookBehind,  // children[0] precedes; negated: does not
  };
  Kind kind = Kind::kSequence;
  bool negated = false;
  int32_t min = 0, max = 0;
  CharSet set;
  std::vector<PatternNode> children;
};

Result<PatternNode> ParsePattern(std::string_view pattern);

const CharSet& WordCharacters();  // \w

}  // namespace aisp
