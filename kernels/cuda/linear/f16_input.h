// The format of activations in a chain with FP8 weights: f16, because e4m3 converts to f16 with one
// instruction per two weights and to bf16 with nine per four
// (docs/decisions/011-f16-activations.md).
//
// They are divided by kF16Divisor, which the sums' scales undo. Then 2^-10 to 1,048,000 keep f16's
// 11 bits, smaller values have errors under 2^-21, larger ones become infinite. Elements are
// permuted within each 16, so that packed FP8 weights (Fp8Position in quantize.h) convert without
// byte moves.
#pragma once

#include <cuda_runtime_api.h>  // __host__, __device__

#include <cstdint>

namespace aisp::cuda {

inline constexpr float kF16Divisor = 16.0f;

// Position of element i of a row, matching where the conversion puts its weight.
__host__ __device__ constexpr int32_t F16Offset(int32_t i) {
  return i / 16 * 16 + i % 8 / 2 * 2 + i % 2 * 8 + (i % 16 < 8 ? 1 : 0);
}

}  // namespace aisp::cuda
