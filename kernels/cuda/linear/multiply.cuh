// The products of one unit (weight rows x a stage of K) in shared memory, by a warpgroup.
//
// `weights` and `input` are shared addresses of the unit's operands in the copy engine's layout, C
// a StreamConfig. The weight is the tensor core's A operand: directly from shared memory (bf16, FP8
// activations) or converted in registers, to bf16 or, for f16 activations, to f16.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/wgmma.cuh"
#include "kernels/cuda/linear/widen.cuh"

namespace aisp::cuda {

// The same value, known to the compiler to be equal in all lanes, so that derived values stay in
// uniform registers. Called by the whole warp.
__device__ __forceinline__ uint32_t Uniform(uint32_t v) {
  uint32_t u;
  asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;" : "=r"(u) : "r"(v));
  return u;
}
// A descriptor moved by `bytes`: one addition instead of the four instructions to build it.
__device__ __forceinline__ uint64_t Moved(uint64_t descriptor, uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// Both operands in shared memory: issues the products of a stage.
template <class C>
__device__ __forceinline__ void MultiplyShared(uint32_t weights, uint32_t input, int group,
                                               float (&sums)[C::kTiles][C::kSums]) {
  using Product = Wgmma<C::kTokens>;
  constexpr int kStep = C::kInput8 ? 32 : 16;  // of K; 32 bytes
  const uint32_t weight = weights + group * C::kTiles * 64 * 128;
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int k = 0; k < C::kStageK / kStep; ++k) {
      const uint64_t a =
          SwizzledDescriptor(weight, i * 64 * 128 + k / 4 * C::kRows * 128 + k % 4 * 32);
      const uint64_t b = SwizzledDescriptor(input, k / 4 * C::kTokens * 128 + k % 4 * 32);
      if constexpr (C::kInput8) {
        Product::Fp8(sums[i], a, b, k > 0);
      } else {
        Product::Bf16(sums[i], a, b);
      }
    }
  }
  WgmmaCommit();
}

// The unconverted bytes of a warp's 16 rows x 64 of K.
struct RawFp8 {
  uint32_t q[2][4];
};
struct RawNvfp4 {
  uint4 words;
  uint2 scales;
};

template <class C>
__device__ __forceinline__ void LoadRaw(uint32_t weights, int tile, int chunk, int warp, int lane,
                                        RawFp8& raw) {
  const int row = tile * 64 + warp * 16 + lane % 16;
  const uint32_t line = weights + chunk / 2 * C::kRows * 128 + row * 128;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    LoadMatrix4(raw.q[c], line + (((chunk % 2 * 4 + 2 * c + lane / 16) ^ (lane % 8)) * 16));
  }
}
template <class C>
__device__ __forceinline__ void LoadRaw(uint32_t weights, int tile, int chunk, int warp, int lane,
                                        RawNvfp4& raw) {
  const uint32_t at = weights + (tile * (C::kStageK / 64) + chunk) * kNvfp4ChunkBytes;
  raw.words = LoadShared16(at + (warp * 32 + lane) * 16);
  raw.scales = LoadShared8(at + kNvfp4DataBytes + (warp * 8 + lane / 4) * 8);
}

// Converts to A fragments of four steps of 16, in f16 in the order of F16Offset.
template <bool kF16>
__device__ __forceinline__ void Widen(const RawFp8& raw, uint32_t (&a)[4][4]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t(&step)[4] = a[2 * c + h];
      if constexpr (kF16) {
        WidenFp8ToF16(raw.q[c][2 * h], step[0], step[2]);
        WidenFp8ToF16(raw.q[c][2 * h + 1], step[1], step[3]);
      } else {
        WidenFp8(raw.q[c][2 * h], step[0], step[2]);
        WidenFp8(raw.q[c][2 * h + 1], step[1], step[3]);
      }
    }
  }
}
template <bool kF16>
__device__ __forceinline__ void Widen(const RawNvfp4& raw, uint32_t (&a)[4][4]) {
  static_assert(!kF16);
  WidenNvfp4(raw.words, raw.scales, a);
}

// The weight is converted in registers (to f16 if the input is f16), 64 of K at a time, while the
// previous products are in flight. `release_previous` is called when the previous stage's products
// are done.
template <class C, bool kF16 = false, class ReleasePrevious>
__device__ __forceinline__ void MultiplyWidened(uint32_t weights, uint32_t input, int group,
                                                int warp, int lane,
                                                float (&sums)[C::kTiles][C::kSums],
                                                const ReleasePrevious& release_previous) {
  using Product = Wgmma<C::kTokens>;
  using Raw = std::conditional_t<C::kNvfp4, RawNvfp4, RawFp8>;
  constexpr int kChunks = C::kStageK / 64;
  static_assert(C::kTiles * kChunks % 2 == 0);
  const uint64_t tokens = SwizzledDescriptor(Uniform(input), 0);
  uint32_t a[2][4][4];
  Raw raw[2];
  LoadRaw<C>(weights, group * C::kTiles, 0, warp, lane, raw[0]);
#pragma unroll
  for (int j = 0; j < C::kTiles * kChunks; ++j) {
    const int i = j / kChunks;
    const int c = j % kChunks;
    if (j + 1 < C::kTiles * kChunks) {
      LoadRaw<C>(weights, group * C::kTiles + (j + 1) / kChunks, (j + 1) % kChunks, warp, lane,
                 raw[(j + 1) % 2]);
    }
    WgmmaWait<1>();
    if (j == 1) release_previous();
    Widen<kF16>(raw[j % 2], a[j % 2]);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t b = Moved(tokens, c * C::kTokens * 128 + k * 32);
      const bool keep = !C::kPromote || c > 0 || k > 0;
      if constexpr (kF16) {
        Product::F16(sums[i], a[j % 2][k], b, keep);
      } else {
        Product::Bf16(sums[i], a[j % 2][k], b, keep);
      }
    }
    WgmmaCommit();
  }
}

// Adds the sums of one unit times the scale of its block. `row`: the warp's first. Reads n, scales
// and scale_columns of the parameters.
template <class C, class Params>
__device__ __forceinline__ void AddStage(const Params& p, int32_t row, int32_t k_unit,
                                         const float (&stage_sums)[C::kTiles][C::kSums],
                                         float (&sums)[C::kTiles][C::kSums]) {
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
    float scale[2] = {1.0f, 1.0f};
    if constexpr (C::kBlockScales) {
      const int32_t top = (row + i * 64) / 8;
      const int32_t last = (p.n - 1) / 8;
      scale[0] = __ldg(p.scales + static_cast<int64_t>(min(top, last)) * p.scale_columns + k_unit);
      scale[1] =
          __ldg(p.scales + static_cast<int64_t>(min(top + 1, last)) * p.scale_columns + k_unit);
    }
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) sums[i][j] += scale[j / 2 % 2] * stage_sums[i][j];
  }
}

}  // namespace aisp::cuda
