// The kernel for many rows (gemm.cuh) with K split into parts, for fewer tiles than
// multiprocessors.
//
// A cluster computes one tile of two CTAs' weight rows with kSplits pairs of CTAs, each of which
// multiplies a part of K as in gemm.cuh. Then each pair finishes a part of the tokens: it receives
// the others' sums of them through distributed shared memory, in the ring of stages that is no
// longer needed, and adds them in part order. So the result does not depend on timing.
#pragma once

#include "kernels/cuda/linear/gemm.cuh"

namespace aisp::cuda {

template <class C, int kSplits, Store kStore>
struct SplitTile {
  static constexpr int kChunk = GemmStoreTokens(kStore);
  static constexpr int kChunks = C::kTokens / kChunk;
  static constexpr int kChunkSums = kChunk / 2;  // per thread
  // Maximum of chunks of tokens that a pair finishes.
  static constexpr int kOwned = (kChunks + kSplits - 1) / kSplits;
  static constexpr int kQuads = kOwned * kChunkSums / 4;
  static_assert((kSplits - 1) * kQuads * 256 * 16 <= C::kStages * C::kStageBytes);
  static_assert(kOwned <= C::kBuffers);

  // Chunk c is finished by part c kSplits / kChunks.
  static __host__ __device__ constexpr int FirstOf(int part) {
    return (part * kChunks + kSplits - 1) / kSplits;
  }
  static __device__ __forceinline__ int OwnedBy(int part) {
    return FirstOf(part + 1) - FirstOf(part);
  }

  // Where another part's sums are in the CTA that finishes them: `slot` counts the other parts.
  static __device__ __forceinline__ uint32_t Quad(const GemmShared<C>& shared, int slot, int quad) {
    return shared.base + ((slot * kQuads + quad) * 256 + threadIdx.x) * 16;
  }

  // Sends what other pairs finish to them, and keeps the rest in `own`.
  static __device__ __forceinline__ void Send(const GemmShared<C>& shared, int part, int rank,
                                              const float (&sums)[C::kSums],
                                              float (&own)[kOwned * kChunkSums]) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int owner = c * kSplits / kChunks;
      const int index = c - FirstOf(owner);
      const float* const from = sums + c * kChunkSums;
      if (owner == part) {
#pragma unroll
        for (int i = 0; i < kChunkSums; ++i) own[index * kChunkSums + i] = from[i];
        continue;
      }
      const int slot = part < owner ? part : part - 1;
#pragma unroll
      for (int q = 0; q < kChunkSums / 4; ++q) {
        const uint32_t here = Quad(shared, slot, index * (kChunkSums / 4) + q);
        StoreRemote16(AddressIn(here, static_cast<uint32_t>(owner * kGemmCluster + rank)),
                      from + 4 * q);
      }
    }
  }

  static __device__ __forceinline__ void AddAll(const GemmShared<C>& shared, int part,
                                                float (&own)[kOwned * kChunkSums]) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if (q / (kChunkSums / 4) >= OwnedBy(part)) break;
      float total[4] = {};
#pragma unroll
      for (int other = 0; other < kSplits; ++other) {
        float v[4];
        if (other == part) {
#pragma unroll
          for (int i = 0; i < 4; ++i) v[i] = own[4 * q + i];
        } else {
          const uint4 raw = LoadShared16(Quad(shared, other < part ? other : other - 1, q));
          v[0] = __uint_as_float(raw.x);
          v[1] = __uint_as_float(raw.y);
          v[2] = __uint_as_float(raw.z);
          v[3] = __uint_as_float(raw.w);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) total[i] = other == 0 ? v[i] : total[i] + v[i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) own[4 * q + i] = total[i];
    }
  }

  // Stores the finished tokens, or adds them to y.
  static __device__ __forceinline__ void StoreOwn(const GemmShared<C>& shared, const GemmParams& p,
                                                  const CUtensorMap* output, const RowScales& rows,
                                                  const GemmTile& tile, int part,
                                                  const float (&own)[kOwned * kChunkSums]) {
    const int group = threadIdx.x / 128;
    const int thread = threadIdx.x % 128;
    const int32_t row = tile.row + group * 64;
#pragma unroll
    for (int c = 0; c < kOwned; ++c) {
      if (c >= OwnedBy(part)) break;
      const int32_t token = tile.token + (FirstOf(part) + c) * kChunk;
      const uint32_t buffer = shared.Output(group) + c * C::kBufferBytes;
      const uint32_t scales = shared.Scales(group) + 4 * (FirstOf(part) + c) * kChunk;
      WriteChunk<C, kStore, kChunk>(p, rows, buffer, token, scales, thread / 32, thread % 32,
                                    own + c * kChunkSums);
      FenceProxyAsync();
      NamedSync(1 + group, 128);
      if (thread != 0) continue;
      if constexpr (kStore == Store::kBf16) {
        TensorStore(output, row, token, buffer);
      } else {
#pragma unroll
        for (int b = 0; b < 2; ++b)
          TensorAdd(output, row + b * 32, token, buffer + b * (kChunk * 128));
      }
      BulkStoreCommit();
    }
    if (thread == 0) BulkStoreWaitRead<0>();
  }

  // Everything after the products of a part. Called by all consumers of the cluster.
  static __device__ __forceinline__ void Finish(const GemmShared<C>& shared, const GemmParams& p,
                                                const CUtensorMap* output, const RowScales& rows,
                                                const GemmTile& tile, int part, int rank,
                                                const float (&sums)[C::kSums]) {
    float own[kOwned * kChunkSums];
    Send(shared, part, rank, sums, own);
    ClusterSync();
    AddAll(shared, part, own);
    StoreOwn(shared, p, output, rows, tile, part, own);
  }
};

// Stages of a part.
__device__ __forceinline__ int32_t UnitsOf(const GemmParams& p, int part) {
  return min(p.part_units, p.k_units - part * p.part_units);
}

// The producer thread: loads the stages of a part.
template <class C>
__device__ __forceinline__ void ProducePart(const GemmShared<C>& shared, int part, int rank,
                                            const GemmTile& tile, const GemmParams& p,
                                            const CUtensorMap* weight, const CUtensorMap* input,
                                            const CUtensorMap* output) {
  const uint32_t half = static_cast<uint32_t>(rank) * (C::kInputBytes / 2);
  const int32_t half_token = tile.token + rank * (C::kTokens / 2);
  const auto mask = static_cast<uint16_t>(3u << shared.pair);
  const uint64_t weight_policy = EvictFirstPolicy();
  const int32_t first_k = part * p.part_units;
  const int32_t k_units = UnitsOf(p, part);
  const int32_t ahead = min(k_units, C::kStages);
  // Weights of the first stages do not depend on the previous kernel.
  for (int32_t k = 0; k < ahead; ++k) {
    BarrierExpect(shared.Full(k), C::kLoadedBytes);
    LoadWeightStage(shared, k, tile.row, first_k + k, p, weight, weight_policy);
  }
  WaitForPreviousKernel();
  StageCursor<C::kStages> at;
  for (int32_t k = 0; k < k_units; ++k, at.Next()) {
    if (k >= ahead) {
      BarrierWait(shared.Empty(at.stage), at.parity ^ 1);
      BarrierExpect(shared.Full(at.stage), C::kLoadedBytes);
      LoadWeightStage(shared, at.stage, tile.row, first_k + k, p, weight, weight_policy);
    }
    TensorLoadMulticast(shared.Input(at.stage) + half, input, (first_k + k) * C::kStageK,
                        half_token, shared.Full(at.stage), mask);
    if (part == 0 && p.store == Store::kAccumulateF32) PrefetchOutput<C>(output, tile, k - k_units);
  }
}

// One cluster per tile. FP8 rows and weights, Store::kAccumulateF32 or kBf16.
template <class C, int kSplits>
__global__ void __cluster_dims__(kGemmCluster* kSplits, 1, 1) __launch_bounds__(kGemmThreads, 1)
    GemmSplitKernel(const __grid_constant__ CUtensorMap weight,
                    const __grid_constant__ CUtensorMap input,
                    const __grid_constant__ CUtensorMap output, const GemmParams p) {
  static_assert(C::kFormat == GemmFormat::kFp8);
  extern __shared__ uint8_t memory[];
  constexpr int kCtas = kGemmCluster * kSplits;
  const int cta = static_cast<int>(blockIdx.x) % kCtas;
  const int part = cta / kGemmCluster, rank = cta % kGemmCluster;
  const GemmShared<C> shared = AlignedShared<C>(memory, static_cast<uint32_t>(part * kGemmCluster));
  const GemmTile tile = TileAt<C>(p, static_cast<int32_t>(blockIdx.x) / kCtas, rank);
  if (threadIdx.x == 0) {
    InitBarriers(shared);
    PrefetchMap(&weight);
    PrefetchMap(&input);
    PrefetchMap(&output);
  }
  ClusterSync();
  AllowNextKernel();
  // All threads pass the same two cluster barriers: all stages were used; all sums have arrived.
  if (threadIdx.x >= 256) {
    ptx::RegistersDown<40>();
    if (threadIdx.x == 256) ProducePart(shared, part, rank, tile, p, &weight, &input, &output);
    __syncwarp();
    ClusterSync();
    ClusterSync();
  } else {
    ptx::RegistersUp<232>();
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    const int32_t row = tile.row + group * 64 + threadIdx.x / 32 % 4 * 16;
    StageCursor<C::kStages> at;
    float sums[C::kSums];
    WaitForPreviousKernel();
    const RowScales rows = LoadRowScales<C>(p, row + lane / 4);
    TokenScales<C> scales;
    scales.Load(p, tile);
    MultiplyFp8(shared, p, UnitsOf(p, part), group, lane, row, at, sums);
    scales.Put(shared);
    ClusterSync();
    if (p.store == Store::kBf16) {
      SplitTile<C, kSplits, Store::kBf16>::Finish(shared, p, &output, rows, tile, part, rank, sums);
    } else {
      SplitTile<C, kSplits, Store::kAccumulateF32>::Finish(shared, p, &output, rows, tile, part,
                                                           rank, sums);
    }
  }
}

template <class C>
GemmKernel DescribeSplitGemmKernel() {
  GemmKernel kernel = DescribeGemmKernel<C>();
  kernel.split[0] = reinterpret_cast<const void*>(&GemmSplitKernel<C, kGemmSplits[0]>);
  kernel.split[1] = reinterpret_cast<const void*>(&GemmSplitKernel<C, kGemmSplits[1]>);
  kernel.split[2] = reinterpret_cast<const void*>(&GemmSplitKernel<C, kGemmSplits[2]>);
  return kernel;
}

}  // namespace aisp::cuda
