// Where the warpgroups that share a tile's rows (StreamConfig::kSplits) add their sums, in shared
// memory at `base`.
//
// All of them take part at the end of each of the CTA's tiles. They continue with it in turn, so
// that the others multiply meanwhile. A thread needs only the same thread of the other warpgroups:
// two barriers per warp, no common barrier. Each lane arrives itself: that costs a warp no more
// than one arrival after __syncwarp, and racecheck can follow it. The order of addition depends on
// the tile's number in the CTA, not on timing.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"

namespace aisp::cuda {

template <class C>
struct SplitJoin {
  static constexpr int kWarps = C::kRowThreads / 32;
  static constexpr int kQuads = C::kTiles * C::kSums / 4;
  static constexpr int kBytes =
      C::kSplits == 1 ? 0 : 2 * 8 * kWarps + (C::kSplits - 1) * C::kRowThreads * kQuads * 16;

  uint32_t base;  // 16-aligned

  // By one thread, before any other call.
  __device__ __forceinline__ void Init() const {
    if constexpr (C::kSplits > 1) {
      for (int warp = 0; warp < kWarps; ++warp) {
        BarrierInit(Full(warp), 32 * (C::kSplits - 1));
        BarrierInit(Empty(warp), 32);
      }
    }
  }

  // Whether this warpgroup continues with tile number `tiles` of the CTA.
  static __device__ __forceinline__ bool GoesOn(int32_t tiles) {
    return tiles % C::kSplits == static_cast<int32_t>(threadIdx.x) / C::kRowThreads;
  }

  // True for the one that continues; it then has all sums.
  __device__ __forceinline__ bool Add(int32_t tiles, float (&sums)[C::kTiles][C::kSums]) const {
    if constexpr (C::kSplits == 1) return true;
    const int thread = threadIdx.x % C::kRowThreads;
    const int split = threadIdx.x / C::kRowThreads;
    const int after =
        (split + C::kSplits - tiles % C::kSplits) % C::kSplits;  // the one that continues
    // It waits too: a barrier distinguishes only two phases, so Full must be in this tile's.
    if (tiles > 0) BarrierWait(Empty(thread / 32), (tiles - 1) & 1);
    if (after > 0) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const float(&from)[C::kSums] = sums[q * 4 / C::kSums];
        const int at = q * 4 % C::kSums;
        StoreShared16(Quad(after - 1, q, thread),
                      make_float4(from[at], from[at + 1], from[at + 2], from[at + 3]));
      }
      BarrierArrive(Full(thread / 32));
      return false;
    }
    BarrierWait(Full(thread / 32), tiles & 1);
#pragma unroll
    for (int slot = 0; slot < C::kSplits - 1; ++slot) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const uint4 v = LoadShared16(Quad(slot, q, thread));
        float(&to)[C::kSums] = sums[q * 4 / C::kSums];
        const int at = q * 4 % C::kSums;
        to[at] += __uint_as_float(v.x);
        to[at + 1] += __uint_as_float(v.y);
        to[at + 2] += __uint_as_float(v.z);
        to[at + 3] += __uint_as_float(v.w);
      }
    }
    BarrierArrive(Empty(thread / 32));
    return true;
  }

 private:
  // Per warp: the sums are stored / were read.
  __device__ uint32_t Full(int warp) const { return base + 8 * warp; }
  __device__ uint32_t Empty(int warp) const { return base + 8 * (kWarps + warp); }
  __device__ uint32_t Quad(int slot, int quad, int thread) const {
    return base + 2 * 8 * kWarps + ((slot * kQuads + quad) * C::kRowThreads + thread) * 16;
  }
};

}  // namespace aisp::cuda
