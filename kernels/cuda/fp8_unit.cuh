// Rounding bf16 rows to e4m3, 16 elements at a time. Device code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {

inline constexpr float kMostE4M3 = 448.0f;

// Two values to e4m3; `low` goes to the lower byte.
__device__ __forceinline__ uint32_t ToE4M3x2(float low, float high) {
  return __nv_cvt_float2_to_fp8x2(make_float2(low, high), __NV_SATFINITE, __NV_E4M3);
}

// The scale of a row whose largest absolute value is `most`.
__device__ __forceinline__ float ScaleOfRow(float most) {
  return most > 0.0f ? most / kMostE4M3 : 1.0f;
}

// 16 elements of a row, 32 bytes in and 16 out, permuted (Fp8Position).
struct Fp8Unit {
  uint4 half[2] = {};

  __device__ __forceinline__ const __nv_bfloat162* pairs() const {
    return reinterpret_cast<const __nv_bfloat162*>(half);
  }
  // The maximum of `most` and the absolute values, by parity of their position.
  __device__ __forceinline__ __nv_bfloat162 Most(__nv_bfloat162 most) const {
#pragma unroll
    for (int j = 0; j < 8; ++j) most = __hmax2(most, __habs2(pairs()[j]));
    return most;
  }
  __device__ __forceinline__ uint4 Rounded(float inverse_scale) const {
    static_assert(Fp8Position(0) == 1 && Fp8Position(1) == 3 && Fp8Position(2) == 5 &&
                  Fp8Position(8) == 0 && Fp8Position(9) == 2 && Fp8Position(10) == 4);
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 low = __bfloat1622float2(pairs()[j]);
      const float2 high = __bfloat1622float2(pairs()[j + 4]);
      words[j] = ToE4M3x2(high.x * inverse_scale, low.x * inverse_scale) |
                 ToE4M3x2(high.y * inverse_scale, low.y * inverse_scale) << 16;
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
  }
};

__device__ __forceinline__ float MostOf(__nv_bfloat162 pair) {
  return fmaxf(__low2float(pair), __high2float(pair));
}

}  // namespace aisp::cuda
