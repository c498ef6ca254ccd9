// A finished tile of the few-row kernel for one layer: scales, bias, SiLU or accumulation, and the
// store.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/f16_input.h"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/stream_kernels.h"

namespace aisp::cuda {

__device__ __forceinline__ float SiluMul(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

// Values besides the sums for a thread's two rows of a tile of 64.
template <class C>
struct StreamTile {
  static constexpr int kOwnTokens = C::kTokens / 4;  // tokens per thread, for its two rows
  // If true, Load fetches everything and may be called before the products; otherwise only what is
  // independent of tokens, since converting weights leaves no registers.
  static constexpr bool kHeld = C::kTokens <= 32;
  static constexpr bool kEarly = kHeld && (C::kFormat == StreamFormat::kBf16 || C::kInput8);

  int32_t row[2];
  bool has[2];
  float scale[2];
  float bias[2] = {0.0f, 0.0f};
  float x_scale[kHeld ? kOwnTokens : 1];
  float old[kHeld ? C::kSums : 1];  // previous values of y

  static __device__ __forceinline__ int32_t Token(int i, int lane) {
    return i / 2 * 8 + 2 * (lane % 4) + i % 2;
  }

  __device__ __forceinline__ void Load(const StreamParams& p, int32_t top, int lane, bool needed) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = top + 8 * r;
      has[r] = needed && row[r] < p.n;
      scale[r] = C::kConvert ? kF16Divisor : 1.0f;
      if constexpr (C::kFormat != StreamFormat::kBf16 && !C::kBlockScales) {
        if (has[r]) scale[r] *= __ldg(p.scales + row[r]);
      }
      if (p.bias != nullptr && has[r]) bias[r] = __ldg(p.bias + row[r]);
    }
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < kOwnTokens; ++i) x_scale[i] = InputScale(p, Token(i, lane));
#pragma unroll
      for (int i = 0; i < C::kSums; ++i) {
        old[i] = Old(p, Token(i / 4 * 2 + i % 2, lane), i / 2 % 2);
      }
    }
  }

  // Scales, adds the bias and stores.
  __device__ __forceinline__ void Store(const StreamParams& p, int32_t group_row, int lane,
                                        const float (&sums)[C::kSums]) const {
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const int32_t token = Token(i, lane);
      if (token >= p.rows) continue;
      const int at = i / 2 * 4 + i % 2;
      float scale_of_x;
      if constexpr (kHeld) {
        scale_of_x = x_scale[i];
      } else {
        scale_of_x = InputScale(p, token);
      }
      const float u = sums[at] * (scale[0] * scale_of_x) + bias[0];
      const float v = sums[at + 2] * (scale[1] * scale_of_x) + bias[1];
      const int64_t line = token * p.y_stride;
      if (p.store == Store::kBf16) {
        __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + line;
        if (has[0]) y[row[0]] = __float2bfloat16(u);
        if (has[1]) y[row[1]] = __float2bfloat16(v);
      } else if (p.store == Store::kSiluMulBf16) {
        __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + line;
        if (has[1]) y[group_row / 2 + lane / 4] = __float2bfloat16(SiluMul(u, v));
      } else {
        float* const y = static_cast<float*>(p.y) + line;
        float before[2];
        if constexpr (kHeld) {
          before[0] = old[at];
          before[1] = old[at + 2];
        } else {
          before[0] = Old(p, token, 0);
          before[1] = Old(p, token, 1);
        }
        if (has[0]) y[row[0]] = before[0] + u;
        if (has[1]) y[row[1]] = before[1] + v;
      }
    }
  }

 private:
  static __device__ __forceinline__ float InputScale(const StreamParams& p, int32_t token) {
    if constexpr (!C::kInput8) return 1.0f;
    return token < p.rows ? __ldcg(p.x_scales + token) : 1.0f;
  }
  __device__ __forceinline__ float Old(const StreamParams& p, int32_t token, int r) const {
    if (p.store != Store::kAccumulateF32 || !has[r] || token >= p.rows) return 0.0f;
    return __ldcg(static_cast<const float*>(p.y) + token * p.y_stride + row[r]);
  }
};

}  // namespace aisp::cuda
