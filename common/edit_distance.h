// Levenshtein distance, for "did you mean" suggestions. Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace aisp {

// The fewest insertions, deletions and substitutions of bytes that turn `a` into `b`.
size_t EditDistance(std::string_view a, std::string_view b);

}  // namespace aisp
