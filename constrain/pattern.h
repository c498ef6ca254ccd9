// Regular expressions of JSON Schema (ECMA-262 with the `u` flag, some of Annex B) to languages.
// Unless anchored, a pattern matches anywhere in a text. Look-ahead, anchors anywhere and word
// boundaries are exact: they become intersections with what follows. Look-behind is exact for one
// character anywhere, and for more characters after a part that starts at the text's beginning.
// Refused by name: back-references, other look-behind, escapes that engines interpret differently,
// and assertions inside an unbounded repetition that look outside the current round.
#pragma once

#include <string_view>

#include "common/result.h"
#include "constrain/language.h"

namespace aisp {

inline constexpr size_t kMaxPatternBytes = 16 * 1024;

// All texts in which `pattern` matches somewhere. INVALID_ARGUMENT: malformed. UNIMPLEMENTED:
// cannot be enforced.
Result<TermId> CompilePattern(std::string_view pattern, Languages* languages);
// All texts that `pattern` matches completely (guided_regex, tokens of a grammar).
Result<TermId> CompileWholePattern(std::string_view pattern, Languages* languages);

}  // namespace aisp
