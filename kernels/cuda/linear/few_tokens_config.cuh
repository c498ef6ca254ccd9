// Sizes and shared memory layout of the kernels for a few tokens.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/few_tokens_kernels.h"

namespace aisp::cuda {

template <WeightFormat kFormatV>
struct FewTokensConfig {
  static constexpr WeightFormat kFormat = kFormatV;
  static_assert(kFormat == WeightFormat::kBf16 || kFormat == WeightFormat::kFp8);
  static constexpr bool kNvfp4 = false;
  // FP8 weights convert to f16, so the tokens are in f16 too (f16_input.h).
  static constexpr bool kF16 = kFormat == WeightFormat::kFp8;
  static constexpr int kWarps = 8;
  // A stage is kTokenRows rows x kStageK; each warp has its own block of kBlockK.
  static constexpr int kBlockK = kF16 ? 128 : 64;
  static constexpr int kStageK = kWarps * kBlockK;
  static constexpr int kBlockBytes = 2048;
  static constexpr int kStageBytes = kWarps * kBlockBytes;
  static constexpr int kThreads = kWarps * 32 + 96;
  // A warp's registers of the tokens: its part of several stages, in vectors of 32 of K.
  static constexpr int kVectorsPerStage = kBlockK / 32;
  static constexpr int kVectors = 16;
  static constexpr int kSliceStages = kVectors / kVectorsPerStage;
  // Tiles that are processed together in each slice of K.
  static constexpr int kGroupTiles = 4;
  // As in one_token_config.cuh.
  static constexpr int kInFlight = (64 << 10) / kStageBytes;
  static constexpr int kInFlightEarly = (32 << 10) / kStageBytes;
  static constexpr int kRing = 12;
  // Loads vectors of the next slice while the last tile of this one is multiplied. A bf16 slice
  // takes so long that the ring hides the wait.
  static constexpr bool kAsksAhead = kF16;
  static constexpr int kSlots = 4;  // tiles whose sums wait to be added
  static constexpr int kRegisters = 168;
  static_assert(kStageBytes % 1024 == 0 && kInFlight < kRing);
};

template <class C>
struct FewTokensShared {
  static constexpr int kTileBytes = C::kWarps * 32 * 16;
  static constexpr int kSumsAt = C::kRing * C::kStageBytes;
  static constexpr int kParkedAt = kSumsAt + C::kSlots * kTileBytes;
  static constexpr int kBarriersAt = kParkedAt + C::kGroupTiles * kTileBytes;
  // Including the alignment of the base.
  static constexpr int kBytes = 1024 + kBarriersAt + 8 * (2 * C::kRing + 2 * C::kSlots + 1);

  uint32_t base;  // 1024-aligned

  __device__ uint32_t Stage(int stage) const { return base + stage * C::kStageBytes; }
  __device__ uint32_t Block(int stage, int warp) const {
    return Stage(stage) + warp * C::kBlockBytes;
  }
  // A lane's four sums of a tile: rows g and g + 8 times tokens 2 t and 2 t + 1.
  __device__ uint32_t Sums(int slot, int warp, int lane) const {
    return base + kSumsAt + ((slot * C::kWarps + warp) * 32 + lane) * 16;
  }
  // The same for a tile between slices of K.
  __device__ uint32_t Parked(int tile, int warp, int lane) const {
    return base + kParkedAt + ((tile * C::kWarps + warp) * 32 + lane) * 16;
  }
  __device__ uint32_t Full(int stage) const { return base + kBarriersAt + 8 * stage; }
  __device__ uint32_t Empty(int stage) const { return Full(C::kRing + stage); }
  __device__ uint32_t Summed(int slot) const { return Full(2 * C::kRing + slot); }
  __device__ uint32_t Taken(int slot) const { return Summed(C::kSlots + slot); }
  // Barrier: the second step has begun.
  __device__ uint32_t Begun() const { return Taken(C::kSlots); }
};

// A warp's position in a ring.
template <int kSize>
struct FewTokensCursor {
  int at = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance() {
    if (++at == kSize) {
      at = 0;
      parity ^= 1;
    }
  }
};

// This CTA's tiles of a step, round-robin, so that all CTAs produce the first outputs first, with
// which the next step begins. A unit of gate and up is two tiles, whose outputs are one tile of the
// next step's K.
struct FewTokensShare {
  int32_t unit_tiles;
  int32_t count;
  __device__ __forceinline__ explicit FewTokensShare(const FewTokensStep& step)
      : unit_tiles(step.store == Store::kSiluMulBf16 ? 2 : 1) {
    const int32_t units = (step.tiles + unit_tiles - 1) / unit_tiles;
    const auto cta = static_cast<int32_t>(blockIdx.x);
    const auto ctas = static_cast<int32_t>(gridDim.x);
    count = cta < units ? (units - cta + ctas - 1) / ctas * unit_tiles : 0;
  }
  __device__ __forceinline__ int32_t Tile(int32_t i) const {
    const auto cta = static_cast<int32_t>(blockIdx.x);
    const auto ctas = static_cast<int32_t>(gridDim.x);
    return unit_tiles == 1 ? i * ctas + cta : (i / 2 * ctas + cta) * 2 + i % 2;
  }
};

// Calls `take(i, slice, last)` for each tile and slice of K: all slices of a group of tiles before
// the next group. `i`: the tile's number within the CTA.
template <class C, class Take>
__device__ __forceinline__ void ForTilesAndSlices(const FewTokensStep& step, int32_t count,
                                                  const Take& take) {
  for (int32_t group = 0; group < count; group += C::kGroupTiles) {
    const int32_t end = min(group + C::kGroupTiles, count);
    for (int32_t first = 0; first < step.stages; first += C::kSliceStages) {
      for (int32_t i = group; i < end; ++i) take(i, group, first);
    }
  }
}

}  // namespace aisp::cuda
