// LoRA adapters in a launch of several layers (chain.h). Plain data.
#pragma once

#include <cstdint>

namespace aisp::cuda {

// The adapters of a layer: y += v up^T with v = x down^T. All adapters are side by side, and each
// row keeps the v of its own. All in bf16.
struct ChainAdapters {
  const void* down = nullptr;  // [width, k]
  const void* up = nullptr;    // [n, width], rows in the order of the weight's
  void* v = nullptr;           // [rows, width], scratch; may be shared by layers
  int32_t width = 0;           // over all adapters
  int32_t columns = 0;         // per adapter
};

}  // namespace aisp::cuda
