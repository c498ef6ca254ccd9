// The table of rotary angles, computed once at load. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "model/spec.h"

namespace aisp {

// Frequencies of the dim/2 pairs, after scaling. llama3: the Llama 3.1 report's smooth ramp; yarn:
// arXiv:2309.00071.
std::vector<float> RopeFrequencies(const RopeSpec& rope, int32_t dim);

// [positions, dim]: dim/2 cosines, then dim/2 sines.
std::vector<float> RopeTable(const RopeSpec& rope, int32_t dim, int32_t positions);

}  // namespace aisp
