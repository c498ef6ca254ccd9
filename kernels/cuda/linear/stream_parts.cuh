// Sums of a tile shared by several CTAs, in the kernel for one layer. The CTA with the tile's first
// unit owns it. The others publish their sums in slots, which hold an empty marker before; the
// owner polls the slots, adds the sums in CTA order and resets the slots.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/poll.cuh"

namespace aisp::cuda {

template <class C>
__device__ __forceinline__ uint4* PartOf(float* parts, int32_t cta) {
  return reinterpret_cast<uint4*>(parts + static_cast<int64_t>(cta) * C::kPartialFloats) +
         threadIdx.x % C::kRowThreads;
}

template <class C>
__device__ __forceinline__ void WritePart(float* parts, const float (&sums)[C::kTiles][C::kSums]) {
  uint4* const to = PartOf<C>(parts, blockIdx.x);
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int q = 0; q < C::kSums / 4; ++q) {
      StoreRelaxed(
          to + (i * (C::kSums / 4) + q) * C::kRowThreads,
          make_uint4(__float_as_uint(sums[i][4 * q]), __float_as_uint(sums[i][4 * q + 1]),
                     __float_as_uint(sums[i][4 * q + 2]), __float_as_uint(sums[i][4 * q + 3])));
    }
  }
}

// Adds the parts of the CTAs after this one, up to `last`.
template <class C>
__device__ __forceinline__ void AddParts(float* parts, int32_t last, const PollTag& poll,
                                         float (&sums)[C::kTiles][C::kSums]) {
  constexpr int kQuads = C::kTiles * C::kSums / 4;
  // Several at a time, to have more loads in flight.
  constexpr int kBatch = kQuads >= 8 ? 1 : kQuads == 1 ? 4 : 8 / kQuads;
  const auto missing = [](const uint4& v) {
    return v.x == kChainNoSum || v.y == kChainNoSum || v.z == kChainNoSum || v.w == kChainNoSum;
  };
  for (int32_t cta = static_cast<int32_t>(blockIdx.x) + 1; cta <= last; cta += kBatch) {
    uint4 part[kBatch][kQuads];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint4* const from = PartOf<C>(parts, min(cta + b, last));
#pragma unroll
      for (int q = 0; q < kQuads; ++q) part[b][q] = LoadRelaxed(from + q * C::kRowThreads);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (cta + b > last) break;
      uint4* const from = PartOf<C>(parts, cta + b);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        PollLimit<PollSite::kStreamParts> limit;
        while (missing(part[b][q])) {
          part[b][q] = LoadRelaxed(from + q * C::kRowThreads);
          limit.Count(poll);
        }
        StoreRelaxed(from + q * C::kRowThreads,
                     make_uint4(kChainNoSum, kChainNoSum, kChainNoSum, kChainNoSum));
        float(&to)[C::kSums] = sums[q / (C::kSums / 4)];
        const int at = q % (C::kSums / 4) * 4;
        to[at] += __uint_as_float(part[b][q].x);
        to[at + 1] += __uint_as_float(part[b][q].y);
        to[at + 2] += __uint_as_float(part[b][q].z);
        to[at + 3] += __uint_as_float(part[b][q].w);
      }
    }
  }
}

}  // namespace aisp::cuda
