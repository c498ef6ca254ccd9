// A text of a regular language as a Constraint: guided_regex and guided_choice.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "constrain/constraint.h"

namespace aisp {

// The whole text matches `pattern`. INVALID_ARGUMENT, UNIMPLEMENTED: as in CompileWholePattern, or
// no text matches. RESOURCE_EXHAUSTED: too large, or not compiled within `timeout`.
Result<std::shared_ptr<Constraint>> MakePatternConstraint(
    std::string_view pattern, std::shared_ptr<const TokenTrie> trie,
    std::chrono::milliseconds timeout = std::chrono::seconds(2));
// The whole text is one of `choices` (valid UTF-8, at least one).
Result<std::shared_ptr<Constraint>> MakeChoiceConstraint(const std::vector<std::string>& choices,
                                                         std::shared_ptr<const TokenTrie> trie);

}  // namespace aisp
