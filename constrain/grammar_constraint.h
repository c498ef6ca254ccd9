// A text of a context-free grammar as a Constraint: guided_grammar.
#pragma once

#include <chrono>
#include <memory>
#include <string_view>

#include "constrain/constraint.h"

namespace aisp {

// Errors as in CompileGrammar.
Result<std::shared_ptr<Constraint>> MakeGrammarConstraint(
    std::string_view grammar, std::shared_ptr<const TokenTrie> trie,
    std::chrono::milliseconds timeout = std::chrono::seconds(2));

}  // namespace aisp
