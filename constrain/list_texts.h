// Enumerates small languages and types: the possible items of an array of unique items.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "constrain/automaton.h"

namespace aisp {

// The texts from `state` to an end with min_more to max_more (-1: no limit) further code points;
// nullopt when there are more than `limit` or too many states to visit.
std::optional<std::vector<std::string>> ListTexts(Automaton* automaton, int32_t state,
                                                  int32_t min_more, int32_t max_more, size_t limit);

}  // namespace aisp
