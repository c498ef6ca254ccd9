// Sums and searches over one row of logits, [vocabulary] f32, in vectors: what the host does for
// each token whose log-probability is wanted, 128k values at a time. NaN is allowed in AllFinite
// alone; minus infinity anywhere (tokens that a mask leaves out). Pure functions; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"

namespace aisp {

// Neither NaN nor infinite, any of them.
bool AllFinite(std::span<const float> row);
// The first of the greatest. The row is not empty.
TokenId ArgMax(std::span<const float> row);
// log(sum(exp(row))), within 2e-6. One of them is finite.
double LogSumExp(std::span<const float> row);
// How many are greater than `bound`.
int32_t CountGreater(std::span<const float> row, float bound);
// The `n` greatest in descending order, equal ones by id; all where n is more than there are.
std::vector<TokenId> Greatest(std::span<const float> row, size_t n);

}  // namespace aisp
