// Converts activations to the format of f16_input.h: from bf16 in a stage, for a chain's first
// step, and from the sums that one step leaves for the next.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/linear/f16_input.h"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"

namespace aisp::cuda {

// The address of element i of a row that another step reads.
template <class C>
__device__ __forceinline__ void StoreInner(__nv_bfloat16* row, int32_t i, float v) {
  if constexpr (C::kF16) {
    reinterpret_cast<__half*>(row)[F16Offset(i)] = __float2half_rn(v * (1.0f / kF16Divisor));
  } else {
    row[i] = __float2bfloat16(v);
  }
}

// Converts the bf16 in the high halves of two words to f16, with the division.
__device__ __forceinline__ uint32_t DividedF16x2(uint32_t low, uint32_t high) {
  const __half2 pair = __floats2half2_rn(__uint_as_float(low) * (1.0f / kF16Divisor),
                                         __uint_as_float(high) * (1.0f / kF16Divisor));
  return reinterpret_cast<const uint32_t&>(pair);
}

// Converts a stage's input in place, by `threads` threads of whole warps. Lines of 128 bytes,
// swizzled: 16 elements are two adjacent pieces of 16 bytes, in either order.
template <class C, int kThreads>
__device__ __forceinline__ void ConvertInput(uint32_t input, int thread) {
  constexpr int kPieces = C::kInputBytes / 32;
  constexpr int kOwn = (kPieces + kThreads - 1) / kThreads;
  constexpr int kBatch = kOwn < 4 ? kOwn : 4;
  static_assert(kPieces % (kThreads * kBatch) == 0);
#pragma unroll 1
  for (int first = thread; first < kPieces; first += kThreads * kBatch) {
    uint32_t at[kBatch];
    uint4 low[kBatch];
    uint4 high[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int piece = first + i * kThreads;
      at[i] = input + piece / 4 * 128 + (piece % 4 * 2 ^ piece / 4 % 8) * 16;
      low[i] = LoadShared16(at[i]);
      high[i] = LoadShared16(at[i] ^ 16);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const uint32_t l[4] = {low[i].x, low[i].y, low[i].z, low[i].w};
      const uint32_t h[4] = {high[i].x, high[i].y, high[i].z, high[i].w};
      uint32_t even[4];
      uint32_t odd[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        even[t] = DividedF16x2(h[t] << 16, l[t] << 16);
        odd[t] = DividedF16x2(h[t] & 0xffff0000u, l[t] & 0xffff0000u);
      }
      StoreShared16(at[i], make_uint4(even[0], even[1], even[2], even[3]));
      StoreShared16(at[i] ^ 16, make_uint4(odd[0], odd[1], odd[2], odd[3]));
    }
  }
}

}  // namespace aisp::cuda
