// Regular expressions as JSON Schema has them (ECMA-262 with the `u` flag, some of Annex B): text
// in, a language out. A pattern is found anywhere in a text unless it is anchored. Look-ahead,
// anchors anywhere and word boundaries are exact: they become intersections with what follows.
// Look-behind of one character is exact anywhere, of more behind what begins with the text.
// Refused by name: back-references, other look-behind, escapes that mean different things to
// different engines, and inside a repetition without an end assertions that look beyond what a
// round of it matches.
#pragma once

#include <string_view>

#include "common/result.h"
#include "constrain/language.h"

namespace aisp {

inline constexpr size_t kMaxPatternBytes = 16 * 1024;

// All texts in which `pattern` is found. INVALID_ARGUMENT: not a pattern. UNIMPLEMENTED: one that
// cannot be enforced.
Result<TermId> CompilePattern(std::string_view pattern, Languages* languages);
// All texts that `pattern` matches from end to end (guided_regex, tokens of a grammar).
Result<TermId> CompileWholePattern(std::string_view pattern, Languages* languages);

}  // namespace aisp
