// Loads one unit with the copy engine: weight rows x a stage of K, and the tokens' part of the same
// K.
//
// Issued by one thread. `to` is a shared address, aligned to 1024 bytes; `barrier` counts the
// bytes. Units are numbered along K first. Out-of-range elements are zero.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/stream_kernels.h"

namespace aisp::cuda {

// Loads the weights of unit `k_unit` of a tile.
template <class C>
__device__ __forceinline__ void LoadWeights(uint32_t to, uint32_t barrier, int32_t tile,
                                            int32_t k_unit, const StreamParams& p,
                                            const CUtensorMap* map, uint64_t policy) {
  if constexpr (C::kNvfp4) {
    constexpr int kBytes = C::kStageK / 64 * kNvfp4ChunkBytes;
#pragma unroll
    for (int g = 0; g < C::kRows / 64; ++g) {
      // A tile may extend beyond the last row group: surplus rows are computed from that group and
      // not stored.
      const int64_t group = min(tile * (C::kRows / 64) + g, p.row_groups - 1);
      BulkLoad(to + g * kBytes,
               p.nvfp4 + group * p.group_bytes + static_cast<int64_t>(k_unit) * kBytes, kBytes,
               barrier, policy);
    }
  } else {
#pragma unroll
    for (int b = 0; b < C::kStageK / C::kWeightBoxK; ++b) {
      TensorLoad(to + b * C::kRows * 128, map, k_unit * C::kStageK + b * C::kWeightBoxK,
                 tile * C::kRows, barrier, policy);
    }
  }
}

// Loads into L2 only.
template <class C>
__device__ __forceinline__ void PrefetchWeightUnit(int32_t unit, const StreamParams& p,
                                                   const CUtensorMap* map) {
  const int32_t tile = unit / p.k_units;
  const int32_t k_unit = unit - tile * p.k_units;
  if constexpr (C::kNvfp4) {
    constexpr int kBytes = C::kStageK / 64 * kNvfp4ChunkBytes;
#pragma unroll
    for (int g = 0; g < C::kRows / 64; ++g) {
      const int64_t group = min(tile * (C::kRows / 64) + g, p.row_groups - 1);
      BulkPrefetch(p.nvfp4 + group * p.group_bytes + static_cast<int64_t>(k_unit) * kBytes, kBytes);
    }
  } else {
#pragma unroll
    for (int b = 0; b < C::kStageK / C::kWeightBoxK; ++b) {
      TensorPrefetch(map, k_unit * C::kStageK + b * C::kWeightBoxK, tile * C::kRows);
    }
  }
}

// Loads the tokens' part of a unit, by its number along K.
template <class C>
__device__ __forceinline__ void LoadInputs(uint32_t to, uint32_t barrier, int32_t k_unit,
                                           const CUtensorMap* map, uint64_t policy) {
#pragma unroll
  for (int b = 0; b < C::kStageK / C::kInputBoxK; ++b) {
    TensorLoad(to + b * C::kTokens * 128, map, k_unit * C::kStageK + b * C::kInputBoxK, 0, barrier,
               policy);
  }
}

}  // namespace aisp::cuda
