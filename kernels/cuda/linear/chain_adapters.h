// Low-rank adapters as a launch of several layers (chain.h) takes them. Plain data.
#pragma once

#include <cstdint>

namespace aisp::cuda {

// What low-rank adapters add to a layer in a launch of several: y += v up^T with v = x down^T, all
// adapters beside each other; a row keeps the v of its own. All in bf16.
struct ChainAdapters {
  const void* down = nullptr;  // [width, k]
  const void* up = nullptr;    // [n, width], its rows in the order of the weight's
  void* v = nullptr;           // [rows, width], between the two; may be shared by layers
  int32_t width = 0;           // of all adapters
  int32_t columns = 0;         // of one
};

}  // namespace aisp::cuda
