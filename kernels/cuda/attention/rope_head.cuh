// One head of one row, spread over a warp: normed, rotated and stored from the fused qkv row to the
// query rows or the pool. Device code; collective: all lanes of a warp.
#pragma once

#include "kernels/cuda/attention/ptx.cuh"

namespace aisp::cuda {

template <typename T>
__device__ __forceinline__ float2 Load2(const void* base, int64_t at);
template <>
__device__ __forceinline__ float2 Load2<float>(const void* base, int64_t at) {
  return *reinterpret_cast<const float2*>(static_cast<const float*>(base) + at);
}
template <>
__device__ __forceinline__ float2 Load2<__nv_bfloat16>(const void* base, int64_t at) {
  const uint32_t v =
      *reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(base) + at);
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

template <typename T>
__device__ __forceinline__ void Store2(void* base, int64_t at, float2 v);
template <>
__device__ __forceinline__ void Store2<float>(void* base, int64_t at, float2 v) {
  *reinterpret_cast<float2*>(static_cast<float*>(base) + at) = v;
}
template <>
__device__ __forceinline__ void Store2<__nv_bfloat16>(void* base, int64_t at, float2 v) {
  *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(base) + at) =
      ptx::Pack2<false>(v.x, v.y);
}
template <>
__device__ __forceinline__ void Store2<__nv_fp8_e4m3>(void* base, int64_t at, float2 v) {
  *reinterpret_cast<uint16_t*>(static_cast<uint8_t*>(base) + at) =
      __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
}

// A head's elements as a thread holds them: pairs 2 * lane + 64 * i of the first half, and their
// partners in the second half.
template <int kDim>
struct Head {
  static constexpr int kPairs = kDim / 128 > 0 ? kDim / 128 : 1;
  static constexpr bool kAllLanes = kDim >= 128;  // head_dim 64: only the lower half of the warp
  float2 low[kPairs], high[kPairs];

  __device__ static __forceinline__ bool Mine() { return kAllLanes || threadIdx.x % 32 < 16; }
  __device__ static __forceinline__ int At(int i) {
    return 2 * static_cast<int>(threadIdx.x % 32) + 64 * i;
  }

  template <typename T>
  __device__ __forceinline__ void Load(const void* from, int64_t begin) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      low[i] = high[i] = make_float2(0.0f, 0.0f);
      if (Mine()) {
        low[i] = Load2<T>(from, begin + At(i));
        high[i] = Load2<T>(from, begin + kDim / 2 + At(i));
      }
    }
  }
  template <typename T>
  __device__ __forceinline__ void Store(void* to, int64_t begin, float scale) const {
    if (!Mine()) return;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      Store2<T>(to, begin + At(i), make_float2(low[i].x * scale, low[i].y * scale));
      Store2<T>(to, begin + kDim / 2 + At(i), make_float2(high[i].x * scale, high[i].y * scale));
    }
  }
  __device__ __forceinline__ void Normalise(const float* weight, float epsilon) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      sum +=
          low[i].x * low[i].x + low[i].y * low[i].y + high[i].x * high[i].x + high[i].y * high[i].y;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const float inverse = rsqrtf(sum / kDim + epsilon);
    if (!Mine()) return;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float2 a = Load2<float>(weight, At(i));
      const float2 b = Load2<float>(weight, kDim / 2 + At(i));
      low[i] = make_float2(low[i].x * inverse * a.x, low[i].y * inverse * a.y);
      high[i] = make_float2(high[i].x * inverse * b.x, high[i].y * inverse * b.y);
    }
  }
  __device__ __forceinline__ void Rotate(const float* cos_sin) {
    if (!Mine()) return;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      Rotate(i, Load2<float>(cos_sin, At(i)), Load2<float>(cos_sin, kDim / 2 + At(i)));
    }
  }
  // Rotates pair i by the angles of its elements.
  __device__ __forceinline__ void Rotate(int i, float2 c, float2 s) {
    const float2 x = low[i];
    const float2 y = high[i];
    low[i] = make_float2(x.x * c.x - y.x * s.x, x.y * c.y - y.y * s.y);
    high[i] = make_float2(y.x * c.x + x.x * s.x, y.y * c.y + x.y * s.y);
  }
};

}  // namespace aisp::cuda
