// The LoRA adapters (Hu et al., arXiv:2106.09685) of one packed matrix: each row of a step may use
// another adapter or none. Plain data in host memory. Its address is part of a programme, while its
// adapters change between steps (Ops::PlaceAdapter).
#pragma once

#include <cstdint>
#include <vector>

namespace aisp {

// One of the matrices stacked along the output: q, k and v; gate and up.
struct AdaptedRange {
  int64_t column = 0;  // its first output in the packed matrix
  int64_t out = 0;
};

// y[column, column + out) += (x * down^T) * up
struct AdapterPart {
  int64_t column = 0;  // of the packed matrix's outputs
  int64_t out = 0;
  int32_t rank = 0;
  std::vector<float> down;  // [rank, in]
  std::vector<float> up;    // [rank, out], scaled
};

struct AdaptedLinear {
  int64_t in = 0;
  std::vector<AdaptedRange> ranges;
  // By adapter index; empty: no change to this matrix.
  std::vector<std::vector<AdapterPart>> adapters;
};

}  // namespace aisp
