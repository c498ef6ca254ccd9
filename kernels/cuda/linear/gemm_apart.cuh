// The kernel for many rows (gemm.cuh) with K in two parts that are different clusters, for shapes
// whose tiles the device cannot hold as clusters of four CTAs (gemm_split.cuh) at once.
//
// Two neighbouring clusters of the grid multiply a half of K each. Then each finishes half of the
// tokens: it publishes its sums of the others in global memory, in slots that hold an empty marker
// before, and polls the other cluster's. The bits are those of two parts in one cluster.
//
// Deadlock: the two clusters wait for each other. The grid has at most as many clusters as fit, and
// they start in the order of their numbers, so at most one cluster of the grid can be without its
// neighbour, until another kernel's CTAs end.
#pragma once

#include "kernels/cuda/linear/gemm_split.cuh"
#include "kernels/cuda/poll.cuh"

namespace aisp::cuda {

template <class C, Store kStore>
struct ApartTile {
  static constexpr int kParts = 2;
  using Split = SplitTile<C, kParts, kStore>;
  static constexpr int kQuads = Split::kQuads;
  static_assert(kQuads == kGemmApartQuads);

  // This thread's slots of what a CTA publishes, kGemmConsumers apart.
  static __device__ __forceinline__ uint4* Slots(const GemmParams& p, uint32_t cta) {
    return static_cast<uint4*>(p.parts) + cta * kQuads * kGemmConsumers + threadIdx.x;
  }

  // Publishes what the other cluster finishes, and keeps the rest in `own`.
  template <int kPart>
  static __device__ __forceinline__ void Publish(const GemmParams& p, const float (&sums)[C::kSums],
                                                 float (&own)[4 * kQuads]) {
    uint4* const to = Slots(p, blockIdx.x);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float* const kept = sums + 4 * (kPart * kQuads + q);
      const float* const given = sums + 4 * ((1 - kPart) * kQuads + q);
#pragma unroll
      for (int i = 0; i < 4; ++i) own[4 * q + i] = kept[i];
      StoreRelaxed(to + q * kGemmConsumers,
                   make_uint4(__float_as_uint(given[0]), __float_as_uint(given[1]),
                              __float_as_uint(given[2]), __float_as_uint(given[3])));
    }
  }

  static __device__ __forceinline__ bool IsMissing(const uint4& v) {
    return v.x == kGemmNoSum || v.y == kGemmNoSum || v.z == kGemmNoSum || v.w == kGemmNoSum;
  }

  // Adds the other cluster's sums, and empties their slots for the next launch. All are requested
  // at once when the first is there. False: they did not come within kMostPolls.
  static __device__ __forceinline__ bool AddOther(const GemmParams& p, float (&own)[4 * kQuads]) {
    uint4* const from = Slots(p, blockIdx.x ^ kGemmCluster);
    uint32_t left = kMostPolls;
    uint4 seen[kQuads];
    do {
      seen[0] = LoadRelaxed(from);
    } while (IsMissing(seen[0]) && --left > 0);
#pragma unroll
    for (int q = 1; q < kQuads; ++q) seen[q] = LoadRelaxed(from + q * kGemmConsumers);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      while (IsMissing(seen[q]) && left > 0) {
        seen[q] = LoadRelaxed(from + q * kGemmConsumers);
        --left;
      }
      StoreRelaxed(from + q * kGemmConsumers,
                   make_uint4(kGemmNoSum, kGemmNoSum, kGemmNoSum, kGemmNoSum));
      own[4 * q] += __uint_as_float(seen[q].x);
      own[4 * q + 1] += __uint_as_float(seen[q].y);
      own[4 * q + 2] += __uint_as_float(seen[q].z);
      own[4 * q + 3] += __uint_as_float(seen[q].w);
    }
    return left > 0;
  }

  // Everything after the products of a part. False: the other cluster's sums did not come.
  static __device__ __forceinline__ bool Finish(const GemmShared<C>& shared, const GemmParams& p,
                                                const CUtensorMap* output, const RowScales& rows,
                                                const GemmTile& tile, int part,
                                                const float (&sums)[C::kSums]) {
    float own[4 * kQuads];
    if (part == 0) {
      Publish<0>(p, sums, own);
    } else {
      Publish<1>(p, sums, own);
    }
    const bool complete = AddOther(p, own);
    NamedSync(1 + threadIdx.x / 128, 128);  // the tokens' scales are there
    Split::StoreOwn(shared, p, output, rows, tile, part, own);
    return complete;
  }
};

// Two clusters per tile. FP8 rows and weights, Store::kAccumulateF32 or kBf16.
template <class C>
__global__ void __cluster_dims__(kGemmCluster, 1, 1) __launch_bounds__(kGemmThreads, 1)
    GemmApartKernel(const __grid_constant__ CUtensorMap weight,
                    const __grid_constant__ CUtensorMap input,
                    const __grid_constant__ CUtensorMap output, const GemmParams p) {
  static_assert(C::kFormat == GemmFormat::kFp8);
  extern __shared__ uint8_t memory[];
  const GemmShared<C> shared = AlignedShared<C>(memory);
  const auto rank = static_cast<int>(blockIdx.x % kGemmCluster);
  const auto cluster = static_cast<int32_t>(blockIdx.x / kGemmCluster);
  const int part = cluster % 2;
  const GemmTile tile = TileAt<C>(p, cluster / 2, rank);
  if (threadIdx.x == 0) {
    InitBarriers(shared);
    PrefetchMap(&weight);
    PrefetchMap(&input);
    PrefetchMap(&output);
  }
  ClusterSync();
  AllowNextKernel();
  bool complete = true;
  if (threadIdx.x >= kGemmConsumers) {
    ptx::RegistersDown<40>();
    if (threadIdx.x == kGemmConsumers)
      ProducePart(shared, part, rank, tile, p, &weight, &input, &output);
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
    if (p.store == Store::kBf16) {
      complete = ApartTile<C, Store::kBf16>::Finish(shared, p, &output, rows, tile, part, sums);
    } else {
      complete =
          ApartTile<C, Store::kAccumulateF32>::Finish(shared, p, &output, rows, tile, part, sums);
    }
  }
  // Not among the consumers' instructions: there a trap makes the assembler spill registers.
  if (!complete) GiveUp(p.poll, PollSite::kGemmParts);
  __syncwarp();
  // The other CTA's copies and arrivals access this one's shared memory.
  ClusterSync();
}

}  // namespace aisp::cuda
