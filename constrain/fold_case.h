// Letters that differ in their case alone, as the flag i of ECMA-262 (with u) compares: Unicode's
// simple case folding. Pure functions: any thread.
#pragma once

#include "constrain/char_set.h"

namespace aisp {

// `set`, and all that folds to the same as one of it.
CharSet FoldCase(const CharSet& set);

}  // namespace aisp
