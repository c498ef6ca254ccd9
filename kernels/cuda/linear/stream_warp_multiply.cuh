// The products of one unit by each warp separately, with weights converted in registers: mma.sync
// instead of wgmma.
//
// A warpgroup's product makes four warps wait for each other every 64 of K, and with few tokens
// takes a multiple of its operations' time. A warp's own product instead needs two loads of token
// fragments per 64 of K.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/linear/multiply.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"

namespace aisp::cuda {

// Adds a stage's products. With eight tokens two sums alternate, so that a product does not wait
// for the previous one.
template <class C, bool kF16>
__device__ __forceinline__ void MultiplyByWarp(uint32_t weights, uint32_t input, int group,
                                               int warp, int lane, float (&sums)[C::kSums]) {
  using Raw = std::conditional_t<C::kNvfp4, RawNvfp4, RawFp8>;
  static_assert(C::kTiles == 1 && !C::kPromote);
  constexpr int kChunks = C::kStageK / 64;
  constexpr int kSets = C::kTokens == 8 ? 2 : 1;
  float other[4] = {};
  Raw raw[2];
  LoadRaw<C>(weights, group, 0, warp, lane, raw[0]);
  // In a swizzled line of 128 bytes: the 16-byte pieces that this lane addresses.
  const uint32_t line = input + lane % 8 * 128;
  const uint32_t piece[2] = {line + ((lane / 8) ^ (lane % 8)) * 16,
                             line + ((4 + lane / 8) ^ (lane % 8)) * 16};
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    if (c + 1 < kChunks) LoadRaw<C>(weights, group, c + 1, warp, lane, raw[(c + 1) % 2]);
    uint32_t a[4][4];
    Widen<kF16>(raw[c % 2], a);
#pragma unroll
    for (int n = 0; n < C::kTokens / 8; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t b[4];
        LoadMatrix4(b, piece[h] + c * C::kTokens * 128 + n * 1024);
        ptx::Mma<kF16>(sums + 4 * n, a[2 * h], b[0], b[1]);
        ptx::Mma<kF16>(kSets == 2 ? other : sums + 4 * n, a[2 * h + 1], b[2], b[3]);
      }
    }
  }
  if constexpr (kSets == 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += other[i];
  }
}

// The same for FP8 with eight tokens, in two steps: once a warp's part of a stage is in registers,
// the stage can be released. Four sums alternate over the whole tile, so that no product waits for
// the previous one.
template <class C>
struct Fp8Fragments {
  static constexpr int kChunks = C::kStageK / 64;
  static constexpr int kSets = 4;
  RawFp8 raw[kChunks];
  uint32_t tokens[kChunks][2][4];

  __device__ __forceinline__ void TakeWeights(uint32_t weights, int group, int warp, int lane) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) LoadRaw<C>(weights, group, c, warp, lane, raw[c]);
  }
  __device__ __forceinline__ void TakeTokens(uint32_t input, int lane) {
    const uint32_t line = input + lane % 8 * 128;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        LoadMatrix4(tokens[c][h],
                    line + c * C::kTokens * 128 + ((4 * h + lane / 8) ^ (lane % 8)) * 16);
      }
    }
  }
  // Depends on all loads, for BarrierArriveBehind.
  __device__ __forceinline__ uint32_t Loaded() const {
    uint32_t all = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      all |= raw[c].q[0][0] | raw[c].q[1][0] | tokens[c][0][0] | tokens[c][1][0];
    }
    return all;
  }
  __device__ __forceinline__ void Multiply(float (&sums)[kSets][C::kSums]) const {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t a[4][4];
      Widen<C::kConvert>(raw[c], a);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        ptx::Mma<C::kConvert>(sums[k], a[k], tokens[c][k / 2][k % 2 * 2],
                              tokens[c][k / 2][k % 2 * 2 + 1]);
      }
    }
  }
};

}  // namespace aisp::cuda
