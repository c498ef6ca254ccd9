// A JSON Schema over a vocabulary: JsonMachine's states as a Constraint.
#pragma once

#include <memory>

#include "constrain/constraint.h"
#include "constrain/json_grammar.h"
#include "constrain/json_machine.h"

namespace aisp {

std::shared_ptr<Constraint> MakeJsonConstraint(std::unique_ptr<JsonGrammar> grammar,
                                               Whitespace whitespace,
                                               std::shared_ptr<const TokenTrie> trie);

}  // namespace aisp
