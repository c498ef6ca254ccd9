// Shared by the LoRA kernels. Rows are processed in tiles of sixteen: for each adapter in the tile,
// the tensor cores multiply all rows, and only rows with that adapter keep the sums. In f32, which
// small models use, each row is processed alone.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/adapter_kernels.h"
#include "kernels/cuda/launch.cuh"

namespace aisp::cuda {

inline constexpr int kTileRows = 16;
inline constexpr int kMostSplits = 16;
inline constexpr int kF32Threads = 256;

using Bf16 = __nv_bfloat16;

// sums [16, 8] += a [16, 16] b [16, 8]
__device__ __forceinline__ void Multiply(float (&sums)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                         uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The adapters of a tile's rows, in shared memory. They and the factors are written before the step
// begins, so kernels may read them before waiting for the previous kernel.
struct TileAdapters {
  int32_t of_row[kTileRows];
  int32_t rank[kMostAdapterRanges][kTileRows];  // per range; 0 without an adapter
  uint32_t begins;                              // bit set of rows that are the first with their
                                                // adapter

  __device__ __forceinline__ void Load(const AdapterLayer& l, const AdapterRows& rows,
                                       int32_t first) {
    if (threadIdx.x < 32) {
      const int lane = static_cast<int>(threadIdx.x);
      const int32_t row = first + lane;
      const bool there = lane < kTileRows && row < rows.rows;
      const int32_t adapter = there ? __ldcg(rows.adapter_of_row + row) : -1;
      const uint32_t same = __match_any_sync(~0u, adapter);
      const uint32_t mask = __ballot_sync(~0u, adapter >= 0 && __ffs(same) - 1 == lane);
      if (lane < kTileRows) {
        of_row[lane] = adapter;
#pragma unroll
        for (int range = 0; range < kMostAdapterRanges; ++range) {
          rank[range][lane] =
              adapter < 0 ? 0 : __ldg(l.ranks + adapter * kMostAdapterRanges + range);
        }
      }
      if (lane == 0) begins = mask;
    }
    __syncthreads();
  }
};

__device__ __forceinline__ int32_t RankOf(const AdapterLayer& l, int32_t adapter, int range) {
  return adapter < 0 ? 0 : __ldg(l.ranks + adapter * kMostAdapterRanges + range);
}

inline unsigned DivideUp(int32_t a, int32_t b) { return static_cast<unsigned>((a + b - 1) / b); }

}  // namespace aisp::cuda
