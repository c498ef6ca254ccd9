// What low-rank adapters (LoRA: Hu et al., arXiv:2106.09685) add to one packed matrix: rows of a
// step may each run with another adapter, or with none. Plain data in host memory; its address is
// part of a programme, its adapters change between steps (Ops::PlaceAdapter).
#pragma once

#include <cstdint>
#include <vector>

namespace aisp {

// Of the matrices that are stacked along the output: q, k and v; gate and up.
struct AdaptedRange {
  int64_t column = 0;  // its first output of the packed matrix
  int64_t out = 0;
};

// y[column, column + out) += (x * down^T) * up
struct AdapterPart {
  int64_t column = 0;  // of the packed matrix's outputs
  int64_t out = 0;
  int32_t rank = 0;
  std::vector<float> down;  // [rank, in]
  std::vector<float> up;    // [rank, out]; scaled
};

struct AdaptedLinear {
  int64_t in = 0;
  std::vector<AdaptedRange> ranges;
  // By the adapter's index; empty: it leaves this matrix as it is.
  std::vector<std::vector<AdapterPart>> adapters;
};

}  // namespace aisp
