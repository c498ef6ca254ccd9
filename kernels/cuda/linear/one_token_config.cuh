// Sizes and shared memory layout of the kernels for one token.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/one_token_kernels.h"

namespace aisp::cuda {

template <WeightFormat kFormatV>
struct OneTokenConfig {
  static constexpr int DivideUp(int a, int b) { return (a + b - 1) / b; }

  static constexpr WeightFormat kFormat = kFormatV;
  static constexpr bool kNvfp4 = kFormat == WeightFormat::kNvfp4;
  static constexpr bool kBlockScales = kFormat == WeightFormat::kFp8Block;
  // FP8 weights convert to f16, so the token is in f16 too (f16_input.h).
  static constexpr bool kF16 = kFormat == WeightFormat::kFp8 || kBlockScales;
  static constexpr int kWarps = 8;
  // A stage is kTokenRows rows x kStageK; each warp has its own block of kBlockK: 2 KiB, plus
  // NVFP4's scales.
  static constexpr int kBlockK = kFormat == WeightFormat::kBf16 ? 64 : kNvfp4 ? 256 : 128;
  static constexpr int kStageK = kWarps * kBlockK;
  static constexpr int kBlockBytes = 2048;
  static constexpr int kBlockScaleBytes = kNvfp4 ? kTokenRows * kBlockK / 16 : 0;
  static constexpr int kStageBytes = kWarps * (kBlockBytes + kBlockScaleBytes);
  static constexpr int kThreads = kWarps * 32 + 64;
  // Limit of stages requested and not yet loaded: enough to keep memory busy. More would form a
  // queue, in which the polled slots wait too.
  static constexpr int kInFlight = DivideUp(64 << 10, kStageBytes);
  // The same for a step's first stages, which are requested while other CTAs still load the
  // previous step's, and while outputs are in transit.
  static constexpr int kInFlightEarly = DivideUp(32 << 10, kStageBytes);
  // Vectors that a lane loads at once: all of a hidden size of about 4,096.
  static constexpr int kResidualBatch = 32 / kWarps;
  static constexpr int kPairBatch = 64 / kWarps;
  // Leaves room for a CTA of decode attention, which uses up to 21.5K of the 64K registers. Each
  // quarter of a multiprocessor has 16K: three of these warps and one of attention's.
  static constexpr int kRegisters = 128;
  static constexpr int kSlots = kNvfp4 ? 4 : 8;  // tiles whose sums wait to be added
  static_assert(kStageBytes % 1024 == 0);
  // The weight warp detects a loaded stage by its parity, so none may be a full turn of the ring
  // behind.
  static_assert(kInFlight <= kTokenLeastRing);
};

template <class C>
struct OneTokenShared {
  static constexpr int kBarriers = 2 * kTokenMaxRing + 2 * C::kSlots;
  // NVFP4: each of four lanes has a part of a row's sum.
  static constexpr int kSumsPerRow = C::kNvfp4 ? 4 : 1;
  static constexpr int kSumBytes = C::kSlots * C::kWarps * kTokenRows * kSumsPerRow * 4;
  static constexpr int kSquareBytes = C::kWarps * 32 * 4;
  // Including the alignment of the base.
  static constexpr int kFixedBytes = 1024 + 8 * kBarriers + kSumBytes + 2 * kSquareBytes;

  uint32_t base;  // 1024-aligned: the ring, then the token, sums and barriers
  uint32_t input;
  uint32_t sums;
  uint32_t barriers;

  __device__ OneTokenShared(uint32_t at, const OneTokenParams& p)
      : base(at),
        input(at + static_cast<uint32_t>(p.ring) * C::kStageBytes),
        sums(input + static_cast<uint32_t>(p.input_bytes) * C::kWarps),
        barriers(sums + kSumBytes + 2 * kSquareBytes) {}

  __device__ uint32_t Stage(int stage) const { return base + stage * C::kStageBytes; }
  __device__ uint32_t Block(int stage, int warp) const {
    return Stage(stage) + warp * C::kBlockBytes;
  }
  __device__ uint32_t BlockScales(int stage, int warp) const {
    return Stage(stage) + C::kWarps * C::kBlockBytes + warp * C::kBlockScaleBytes;
  }
  __device__ uint32_t Sum(int slot, int warp, int row) const {
    return sums + ((slot * C::kWarps + warp) * kTokenRows + row) * (kSumsPerRow * 4);
  }
  // Sums of squares of a lane's part of the input, alternating between norms.
  __device__ uint32_t Squares(int odd, int warp, int lane) const {
    return sums + kSumBytes + odd * kSquareBytes + (warp * 32 + lane) * 4;
  }
  __device__ uint32_t Full(int stage) const { return barriers + 8 * stage; }
  __device__ uint32_t Empty(int stage) const { return Full(kTokenMaxRing + stage); }
  __device__ uint32_t Summed(int slot) const { return Full(2 * kTokenMaxRing + slot); }
  __device__ uint32_t Taken(int slot) const { return Full(2 * kTokenMaxRing + C::kSlots + slot); }
};

// A warp's position in a ring whose size the launch decides.
struct TokenCursor {
  int at = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Advance(int size) {
    if (++at == size) {
      at = 0;
      parity ^= 1;
    }
  }
};

// This CTA's tiles of a step.
struct TokenShare {
  int32_t begin;
  int32_t end;
  __device__ __forceinline__ explicit TokenShare(int32_t tiles)
      : begin(FirstUnit(static_cast<int32_t>(blockIdx.x), static_cast<int32_t>(gridDim.x), tiles)),
        end(FirstUnit(static_cast<int32_t>(blockIdx.x) + 1, static_cast<int32_t>(gridDim.x),
                      tiles)) {}
};

}  // namespace aisp::cuda
