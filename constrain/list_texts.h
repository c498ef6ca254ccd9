// The texts of a language that has few of them, and the values of a type that has few: what arrays
// of unique items can be filled with.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "constrain/automaton.h"

namespace aisp {

// The texts that end the language from `state` on with min_more to max_more (-1: no limit) further
// code points; absent when there are more than `limit`, or too many to look through.
std::optional<std::vector<std::string>> ListTexts(Automaton* automaton, int32_t state,
                                                  int32_t min_more, int32_t max_more, size_t limit);

}  // namespace aisp
