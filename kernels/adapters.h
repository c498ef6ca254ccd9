// What low-rank adapters (LoRA: Hu et al., arXiv:2106.09685) add to one packed matrix: rows of a
// step may each run with another adapter, or with none. Plain data in host memory; immutable once a
// programme is bound to it.
#pragma once

#include <cstdint>
#include <vector>

namespace aisp {

// y[column, column + out) += (x * down^T) * up
struct AdapterPart {
  int64_t column = 0;  // of the packed matrix's outputs
  int64_t out = 0;
  int32_t rank = 0;
  std::vector<float> down;  // [rank, in]
  std::vector<float> up;    // [rank, out]; scaled
};

struct AdaptedLinear {
  // By the adapter's index; empty: it leaves this matrix as it is.
  std::vector<std::vector<AdapterPart>> adapters;
};

}  // namespace aisp
