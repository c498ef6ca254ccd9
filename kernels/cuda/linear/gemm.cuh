// The kernel for many rows: a persistent, warp-specialised product with its epilogue.
//
// A tile is 128 weight rows (the tensor core's A operand: M) x kTokens tokens (B: N), with 64 or
// 128 of K per stage. Two consumer warpgroups handle 64 weight rows each; one thread of a third
// warpgroup keeps kStages stages in flight with the copy engine. The two CTAs of a cluster have
// adjacent weight rows and the same tokens: each loads half of the tokens' box into the shared
// memory of both (multicast), so a stage costs 32 instead of 48 KiB of L2 traffic. Stages continue
// across tiles: while a warpgroup stores its tile, the next tile's operands arrive, and the other
// warpgroup, which may lag by up to kStages stages, still multiplies.
//
// Epilogue: sums are scaled, biased, gated (rows g and g + 8 of a fragment are gate and up),
// transposed into shared memory by stmatrix and stored by the copy engine, which also clips at the
// matrix's edges and adds to f32 rows in L2 (one addition per element, hence deterministic). If
// there are fewer tiles than multiprocessors, gemm_split.cuh or gemm_apart.cuh splits K.
//
// FP8: Hopper accumulates FP8 products with fewer bits than f32, so sums of 128 of K are added to
// f32 by ordinary instructions while the tensor cores process the next ones or the other
// warpgroup's. NVFP4 weights, and FP8 weights with bf16 activations, are converted in registers,
// overlapped with the previous stage's products: exactly, except for FP8's block scales, which are
// rounded to bf16.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/linear/gemm_config.cuh"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/gemm_multiply.cuh"
#include "kernels/cuda/linear/gemm_ptx.cuh"
#include "kernels/cuda/linear/gemm_store.cuh"
#include "kernels/cuda/linear/ptx.cuh"

namespace aisp::cuda {

// ---- producer: one thread ----

template <class C>
__device__ __forceinline__ void LoadWeightStage(const GemmShared<C>& shared, int stage, int32_t row,
                                                int32_t k_unit, const GemmParams& p,
                                                const CUtensorMap* weight, uint64_t policy) {
  if constexpr (C::kNvfp4) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      // A tile may extend beyond the last row group: surplus rows are computed from that group and
      // not stored.
      const int64_t group = min(row / kNvfp4GroupRows + g, p.row_groups - 1);
      BulkLoad(shared.Weight(stage) + g * kNvfp4ChunkBytes,
               p.nvfp4 + group * p.group_bytes + static_cast<int64_t>(k_unit) * kNvfp4ChunkBytes,
               kNvfp4ChunkBytes, shared.Full(stage), policy);
    }
  } else {
    TensorLoad(shared.Weight(stage), weight, k_unit * C::kStageK, row, shared.Full(stage), policy);
  }
}

// Prefetches the old values of y into L2: a box of 32 tokens x 32 columns in each of the last
// stages (`k` < 0).
template <class C>
__device__ __forceinline__ void PrefetchOutput(const CUtensorMap* output, const GemmTile& tile,
                                               int32_t k) {
  constexpr int kColumns = kGemmRows / 32;
  const int32_t box = k + C::kTokens / 32 * kColumns;
  if (box < 0) return;
  TensorPrefetch(output, tile.row + box % kColumns * 32, tile.token + box / kColumns * 32);
}

template <class C>
__device__ __forceinline__ void ProduceTiles(const GemmShared<C>& shared, int32_t rank,
                                             int32_t first_tile, int32_t tile_step,
                                             const GemmParams& p, const CUtensorMap* weight,
                                             const CUtensorMap* input, const CUtensorMap* output) {
  const int32_t tiles = p.token_tiles * p.row_pairs;
  const uint32_t half = static_cast<uint32_t>(rank) * (C::kInputBytes / 2);
  const int32_t half_token = rank * (C::kTokens / 2);
  // All token tiles read a weight tile at about the same time; the activations are read again for
  // the next one.
  const uint64_t weight_policy = EvictFirstPolicy();
  StageCursor<C::kStages> at;
  // Weights of the first stages do not depend on the previous kernel.
  const int32_t ahead = min(p.k_units, C::kStages);
  if (first_tile < tiles) {
    const GemmTile tile = TileAt<C>(p, first_tile, rank);
    for (int32_t k = 0; k < ahead; ++k) {
      BarrierExpect(shared.Full(k), C::kLoadedBytes);
      LoadWeightStage(shared, k, tile.row, k, p, weight, weight_policy);
    }
  }
  WaitForPreviousKernel();
  bool first = true;
  for (int32_t index = first_tile; index < tiles; index += tile_step, first = false) {
    const GemmTile tile = TileAt<C>(p, index, rank);
    for (int32_t k = 0; k < p.k_units; ++k) {
      if (!first || k >= ahead) {
        BarrierWait(shared.Empty(at.stage), at.parity ^ 1);
        BarrierExpect(shared.Full(at.stage), C::kLoadedBytes);
        LoadWeightStage(shared, at.stage, tile.row, k, p, weight, weight_policy);
      }
      TensorLoadMulticast(shared.Input(at.stage) + half, input, k * C::kStageK,
                          tile.token + half_token, shared.Full(at.stage), 3);
      if (p.store == Store::kAccumulateF32) PrefetchOutput<C>(output, tile, k - p.k_units);
      at.Next();
    }
  }
}

// ---- consumers ----

template <class C>
__device__ __forceinline__ void ConsumeTiles(const GemmShared<C>& shared, int32_t rank,
                                             int32_t first_tile, int32_t tile_step,
                                             const GemmParams& p, const CUtensorMap* output) {
  const int group = threadIdx.x / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  const int32_t tiles = p.token_tiles * p.row_pairs;
  StageCursor<C::kStages> at;
  float sums[C::kSums];
  WaitForPreviousKernel();
  for (int32_t index = first_tile; index < tiles; index += tile_step) {
    const GemmTile tile = TileAt<C>(p, index, rank);
    const int32_t row = tile.row + group * 64 + warp * 16;
    const RowScales rows = LoadRowScales<C>(p, row + lane / 4);
    TokenScales<C> scales;
    scales.Load(p, tile);
    if constexpr (C::kFp8) {
      MultiplyFp8(shared, p, p.k_units, group, lane, row, at, sums, p.token_tiles > 1);
    } else if constexpr (C::kNvfp4 || C::kWide8) {
      MultiplyWidened(shared, p, group, warp, lane, row, at, sums);
    } else {
      MultiplyBf16(shared, p, group, lane, at, sums);
    }
    scales.Put(shared);
    if (p.store == Store::kBf16) {
      StoreTile<C, Store::kBf16>(shared, p, output, rows, group, tile, sums);
    } else if (p.store == Store::kSiluMulBf16) {
      StoreTile<C, Store::kSiluMulBf16>(shared, p, output, rows, group, tile, sums);
    } else {
      StoreTile<C, Store::kF32>(shared, p, output, rows, group, tile, sums);
    }
  }
  if (threadIdx.x % 128 == 0) BulkStoreWaitRead<0>();
}

template <class C>
__global__ void __cluster_dims__(kGemmCluster, 1, 1) __launch_bounds__(kGemmThreads, 1)
    GemmMainKernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap input,
                   const __grid_constant__ CUtensorMap output, const GemmParams p) {
  extern __shared__ uint8_t memory[];
  const GemmShared<C> shared = AlignedShared<C>(memory);
  if (threadIdx.x == 0) {
    InitBarriers(shared);
    if constexpr (!C::kNvfp4) PrefetchMap(&weight);
    PrefetchMap(&input);
    PrefetchMap(&output);
  }
  ClusterSync();
  AllowNextKernel();
  const auto rank = static_cast<int32_t>(blockIdx.x % kGemmCluster);
  const auto first = static_cast<int32_t>(blockIdx.x / kGemmCluster);
  const auto step = static_cast<int32_t>(gridDim.x / kGemmCluster);
  if (threadIdx.x >= 256) {
    ptx::RegistersDown<40>();
    if (threadIdx.x == 256) ProduceTiles(shared, rank, first, step, p, &weight, &input, &output);
  } else {
    ptx::RegistersUp<232>();
    ConsumeTiles(shared, rank, first, step, p, &output);
  }
  __syncwarp();
  // The other CTA's copies and arrivals access this one's shared memory.
  ClusterSync();
}

// An instance's properties for the host.
template <class C>
GemmKernel DescribeGemmKernel() {
  GemmKernel kernel;
  kernel.function = reinterpret_cast<const void*>(&GemmMainKernel<C>);
  kernel.format = C::kFormat;
  kernel.tokens = C::kTokens;
  kernel.stage_k = C::kStageK;
  kernel.step_k = C::kNvfp4 ? kNvfp4PadK : C::kWide8 ? 128 : C::kStageK * (C::kAhead ? 2 : 1);
  kernel.stages = C::kStages;
  kernel.shared_bytes = C::kSharedBytes;
  kernel.weight_row_bytes = C::kNvfp4 ? 0 : C::kWeightRowBytes;
  return kernel;
}

}  // namespace aisp::cuda
