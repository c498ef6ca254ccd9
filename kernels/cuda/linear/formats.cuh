// FP8 (e4m3) and FP4 (e2m1) conversions for packing, quantising and expanding. Device functions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace aisp::cuda {

constexpr float kFp8Max = 448.0f;
constexpr float kFp4Max = 6.0f;

__device__ __forceinline__ float ToFloat(float v) { return v; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float ToFloat(__half v) { return __half2float(v); }

__device__ __forceinline__ uint8_t ToFp8(float v) {
  return static_cast<uint8_t>(__nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3));
}
__device__ __forceinline__ float FromFp8(uint8_t v) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(v, __NV_E4M3)));
}

// Rounds to nearest, ties to the even code.
__device__ __forceinline__ uint8_t ToFp4(float v) {
  const float m = fabsf(v);
  const int code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                   (m >= 3.5f) + (m > 5.0f);
  return static_cast<uint8_t>(code | (v < 0.0f ? 8 : 0));
}
__device__ __forceinline__ float FromFp4(uint32_t nibble) {
  const int magnitude = nibble & 7;
  const float value = magnitude < 4    ? 0.5f * static_cast<float>(magnitude)
                      : magnitude == 4 ? 2.0f
                      : magnitude == 5 ? 3.0f
                      : magnitude == 6 ? 4.0f
                                       : 6.0f;
  return (nibble & 8) != 0 ? -value : value;
}

// The largest value of a block; called by all threads, which all get it. kThreads: size of the
// block.
template <int kThreads>
__device__ __forceinline__ float BlockMax(float v) {
  __shared__ float warps[kThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = warps[0];
#pragma unroll
  for (int w = 1; w < kThreads / 32; ++w) v = fmaxf(v, warps[w]);
  return v;
}

}  // namespace aisp::cuda
