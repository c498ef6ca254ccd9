// Vectorised sums and searches over one row of logits, [vocabulary] f32: the host's work for each
// token whose logprob is wanted. NaN is allowed in AllFinite only; minus infinity anywhere (masked
// tokens). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace aisp {

// Whether no element is NaN or infinite.
bool AllFinite(std::span<const float> row);
// Index of the first maximum. The row is not empty.
TokenId ArgMax(std::span<const float> row);
// log(sum(exp(row))), within 2e-6. At least one element is finite.
double LogSumExp(std::span<const float> row);
// Number of elements greater than `bound`.
int32_t CountGreater(std::span<const float> row, float bound);
// Ids of the `n` greatest, descending, ties by id; all if n exceeds the row.
std::vector<TokenId> Greatest(std::span<const float> row, size_t n);

}  // namespace aisp
