// Case-insensitive sets as in ECMA-262's flags iu: Unicode simple case folding. Pure functions: any
// thread.
#pragma once

#include "constrain/char_set.h"

namespace aisp {

// `set` and every letter that folds to the same as a member.
CharSet FoldCase(const CharSet& set);

}  // namespace aisp
