// Shared by the parts of the kernels for many rows (gemm.cuh): an instance's sizes, shared memory,
// and the order of tiles.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/ptx.cuh"

namespace aisp::cuda {

constexpr int kMostSharedBytes = 232448;  // of a CTA

template <GemmFormat kFormatV, int kTokensV, int kStagesV, int kBuffersV>
struct GemmConfig {
  static constexpr GemmFormat kFormat = kFormatV;
  static constexpr int kTokens = kTokensV;
  static constexpr int kStages = kStagesV;
  static constexpr int kBuffers = kBuffersV;  // for a warpgroup's output
  static constexpr bool kFp8 = kFormat == GemmFormat::kFp8 || kFormat == GemmFormat::kFp8Block;
  static constexpr bool kBlockScales = kFormat == GemmFormat::kFp8Block;
  static constexpr bool kNvfp4 = kFormat == GemmFormat::kNvfp4;
  // FP8 weights that are converted in registers.
  static constexpr bool kWideBlock = kFormat == GemmFormat::kFp8BlockBf16;
  static constexpr bool kWide8 = kFormat == GemmFormat::kFp8Bf16 || kWideBlock;
  static constexpr bool kRowScales =
      kNvfp4 || kFormat == GemmFormat::kFp8 || kFormat == GemmFormat::kFp8Bf16;
  static constexpr int kStageK = kFp8 ? 128 : 64;
  static constexpr int kInputBytes = kTokens * 128;
  static constexpr int kWeightRowBytes = kWide8 ? 64 : 128;  // per stage
  static constexpr int kWeightBytes = kNvfp4 ? 2 * kNvfp4ChunkBytes : kGemmRows * kWeightRowBytes;
  static constexpr int kLoadedBytes = kInputBytes + kWeightBytes;
  static constexpr int kStageBytes = (kLoadedBytes + 1023) / 1024 * 1024;
  static constexpr int kBufferBytes = 8192;
  static constexpr int kStagingBytes = 2 * kBuffers * kBufferBytes;
  // The scales of a tile's tokens are brought to shared memory, for each warpgroup.
  static constexpr int kScaleBytes = kFp8 ? 2 * 4 * kTokens : 0;
  static constexpr int kUsedBytes =
      kStages * kStageBytes + kStagingBytes + 16 * kStages + kScaleBytes;
  // With up to 1023 bytes in front, for alignment.
  static constexpr int kSharedBytes = std::min(kUsedBytes + 1023, kMostSharedBytes);
  static constexpr int kSums = kTokens / 2;
  // FP8: the tokens are summed in so many parts, so that both sums fit in registers.
  static constexpr int kParts = kTokens > 192 ? 2 : 1;
  static constexpr int kPartSums = kSums / kParts;
  // FP8: products of two stages fit in registers.
  static constexpr bool kAhead = kFormat == GemmFormat::kFp8 && kTokens <= 128;
  // Arrivals that release a stage: one lane per warp of both CTAs; NVFP4: all lanes of this CTA's
  // (ReleaseStage).
  static constexpr int kStageReleases = kNvfp4 ? 8 * 32 + 8 * (kGemmCluster - 1) : 8 * kGemmCluster;
  static_assert(kTokens % 64 == 0 && kUsedBytes <= kMostSharedBytes);
};

// Shared memory addresses, equal in both CTAs of a cluster.
template <class C>
struct GemmShared {
  uint32_t base;      // 1024-aligned
  uint32_t pair = 0;  // first of the two CTAs that share tokens
  __device__ uint32_t Input(int stage) const { return base + stage * C::kStageBytes; }
  __device__ uint32_t Weight(int stage) const { return Input(stage) + C::kInputBytes; }
  __device__ uint32_t Output(int group) const {
    return base + C::kStages * C::kStageBytes + group * C::kBuffers * C::kBufferBytes;
  }
  __device__ uint32_t Full(int stage) const { return Output(2) + 8 * stage; }
  __device__ uint32_t Empty(int stage) const { return Full(C::kStages) + 8 * stage; }
  __device__ uint32_t Scales(int group) const {
    return Empty(C::kStages) + group * (C::kScaleBytes / 2);
  }
};

// `memory`: the CTA's dynamic shared memory. Nothing else is in front of it, so that it begins at a
// multiple of 1024, and an instance without room for alignment fits.
template <class C>
__device__ __forceinline__ GemmShared<C> AlignedShared(const void* memory, uint32_t pair = 0) {
  const uint32_t begin = SharedAddress(memory);
  const uint32_t base = (begin + 1023) & ~1023u;
  if (base + C::kUsedBytes > begin + C::kSharedBytes) __trap();
  return {base, pair};
}

// By one thread, before the cluster synchronises.
template <class C>
__device__ __forceinline__ void InitBarriers(const GemmShared<C>& shared) {
  for (int s = 0; s < C::kStages; ++s) {
    BarrierInit(shared.Full(s), 1);
    BarrierInit(shared.Empty(s), C::kStageReleases);
  }
  BarrierInitFence();
}

// A position in the ring of stages.
template <int kStages>
struct StageCursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct GemmTile {
  int32_t token = 0;  // the first
  int32_t row = 0;    // the CTA's first
};

template <class C>
__device__ __forceinline__ GemmTile TileAt(const GemmParams& p, int32_t index, int32_t rank) {
  const int32_t in_group = p.group_tokens * p.row_pairs;
  const int32_t group = index / in_group;
  const int32_t first = group * p.group_tokens;
  const int32_t width = min(p.group_tokens, p.token_tiles - first);
  const int32_t rest = index - group * in_group;
  return {(first + rest % width) * C::kTokens, (rest / width * kGemmCluster + rank) * kGemmRows};
}

__device__ __forceinline__ uint32_t PackBf16Pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Swizzle of rows of 64 or 128 bytes, as used by the copy engine: 16-byte pieces permuted within
// 1024 bytes.
template <int kRowBytes>
__device__ __forceinline__ uint32_t Swizzled(uint32_t base, int row, int piece) {
  if constexpr (kRowBytes == 128) return base + row * 128 + ((piece ^ (row % 8)) * 16);
  return base + row * 64 + ((piece ^ (row / 2 % 4)) * 16);
}

}  // namespace aisp::cuda
