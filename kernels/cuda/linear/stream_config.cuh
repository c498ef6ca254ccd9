// The sizes of one instance of a few-row kernel, derived from format, number of tokens and unit
// shape.
//
// Compile-time constants only; shared by the kernel for one layer (stream_linear.cuh) and that for
// several.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/stream_kernels.h"

namespace aisp::cuda {

template <StreamFormat kFormatV, int kTokensV, int kGroupsV, int kTilesV, int kStageKV,
          int kStagesV, int kSplitsV = 1, int kResidentV = 1, int kInputStagesV = kStagesV,
          bool kByWarpV = false>
struct StreamConfig {
  static constexpr StreamFormat kFormat = kFormatV;
  static constexpr int kTokens = kTokensV;  // N of the instruction
  static constexpr int kGroups = kGroupsV;  // consumer warpgroups side by side, with different rows
  static constexpr int kTiles = kTilesV;    // tiles of 64 rows per warpgroup
  static constexpr int kStageK = kStageKV;
  static constexpr int kStages = kStagesV;
  // Chains have a separate ring for the inputs, which come from L2 and need fewer stages.
  static constexpr int kInputStages = kInputStagesV;
  // Consumer warpgroups with the same rows: they alternate stages and add their sums at the end of
  // a tile.
  static constexpr int kSplits = kSplitsV;
  // Resident CTAs per multiprocessor of the kernel for one layer.
  static constexpr int kResident = kResidentV;
  // Each warp multiplies separately (stream_warp_multiply.cuh).
  static constexpr bool kByWarp = kByWarpV;

  static constexpr bool kInput8 =
      kFormat == StreamFormat::kFp8x8 || kFormat == StreamFormat::kFp8x8Block;
  static constexpr bool kNvfp4 = kFormat == StreamFormat::kNvfp4;
  static constexpr bool kBlockScales =
      kFormat == StreamFormat::kFp8Block || kFormat == StreamFormat::kFp8x8Block;
  // In a chain, activations for these weights are in f16 (f16_input.cuh).
  static constexpr bool kF16 = kFormat == StreamFormat::kFp8 || kFormat == StreamFormat::kFp8Block;
  // In the kernel for one layer, few tokens are converted to f16 in their stage.
  static constexpr bool kConvert = kF16 && kTokens <= 32;
  // Hopper accumulates FP8 products with fewer bits than f32, so ordinary instructions add a
  // stage's sums to f32.
  static constexpr bool kPromote = kInput8 || kBlockScales;
  // FP8 by warp: a stage's operands are loaded into registers before they are multiplied.
  static constexpr bool kFp8Fragments = kByWarp && kF16 && kTokens == 8;
  // Kernels that announce when they have requested all of their weights, and prefetch when the
  // previous one has (stream_linear.cuh). With more tokens that costs more than it gains.
  static constexpr bool kAnnounces = kResident > 1 && kTokens == 8 &&
                                     (kFormat == StreamFormat::kBf16 || kF16);
  static constexpr int kRows = kGroups * kTiles * 64;
  static constexpr int kRowThreads = kGroups * 128;
  static constexpr int kConsumers = kRowThreads * kSplits;
  // Arrivals that release a stage: one lane per warp; for NVFP4, whose lanes read weights
  // themselves, every lane. That costs the same, and racecheck does not let a lane arrive for
  // others.
  static constexpr int kReleases = kNvfp4 ? kRowThreads : kRowThreads / 32;
  static constexpr int kSums = kTokens / 2;  // accumulators per thread and tile of 64 rows

  static constexpr int kWeightBoxK = kFormat == StreamFormat::kBf16 ? 64 : 128;  // 128 bytes
  static constexpr int kInputBoxK = kInput8 ? 128 : 64;                          // 128 bytes
  static constexpr int kWeightBytes = kNvfp4 ? kRows / 64 * (kStageK / 64) * kNvfp4ChunkBytes
                                             : kRows * 128 * (kStageK / kWeightBoxK);
  static constexpr int kInputBytes = kTokens * 128 * (kStageK / kInputBoxK);
  static constexpr int kStageBytes = (kInputBytes + kWeightBytes + 1023) / 1024 * 1024;
  static constexpr int kPartialFloats = kRows * kTokens;

  static_assert(kStageK % kInputBoxK == 0 && (kNvfp4 || kStageK % kWeightBoxK == 0));
  static_assert(!kBlockScales || kStageK == 128);
  static_assert(kStages % kSplits == 0 && kInputStages % kSplits == 0);
};

// A warp's position in a ring of stages.
template <int kStages>
struct RingCursor {
  int stage = 0;
  uint32_t parity = 0;
  template <int kBy = 1>
  __device__ __forceinline__ void Advance() {
    stage += kBy;
    if (stage >= kStages) {
      stage -= kStages;
      parity ^= 1;
    }
  }
};
template <class C>
using WeightCursor = RingCursor<C::kStages>;
template <class C>
using InputCursor = RingCursor<C::kInputStages>;
// A consumer's position in both rings of a chain. Rings of equal length advance together.
template <class C>
struct ChainCursor {
  static constexpr bool kOneRing = C::kStages == C::kInputStages;
  WeightCursor<C> weight;
  InputCursor<C> own_input;
  __device__ __forceinline__ const InputCursor<C>& input() const {
    if constexpr (kOneRing) {
      return weight;
    } else {
      return own_input;
    }
  }
  __device__ __forceinline__ void Advance() {
    weight.template Advance<C::kSplits>();
    if constexpr (!kOneRing) own_input.template Advance<C::kSplits>();
  }
};

}  // namespace aisp::cuda
