// The main loops of the kernels for many rows (gemm.cuh): a warpgroup multiplies its 64 weight rows
// with a tile's tokens along all of K. One loop for operands that are both in shared memory, one
// for weights that are converted in registers, one for FP8 sums.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/gemm_config.cuh"
#include "kernels/cuda/linear/gemm_ptx.cuh"
#include "kernels/cuda/linear/gemm_wgmma.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/wgmma.cuh"
#include "kernels/cuda/linear/widen.cuh"

namespace aisp::cuda {

// Releases a stage in both CTAs, since both load tokens into both. One lane arrives for its warp:
// the data was read by matrix products that a warp awaits together. NVFP4 weights are read per
// lane, and each lane arrives: that costs nothing, and racecheck does not let a lane arrive for
// others.
template <class C>
__device__ __forceinline__ void ReleaseStage(const GemmShared<C>& shared, int stage, int lane) {
  if constexpr (C::kNvfp4) {
    BarrierArrive(shared.Empty(stage));
    if (lane == 0) BarrierArriveAt(shared.Empty(stage), blockIdx.x % kGemmCluster ^ 1);
  } else {
    if (lane < kGemmCluster) BarrierArriveAt(shared.Empty(stage), shared.pair + lane);
  }
}

template <class C>
__device__ __forceinline__ void MultiplyBf16(const GemmShared<C>& shared, const GemmParams& p,
                                             int group, int lane, StageCursor<C::kStages>& at,
                                             float (&sums)[C::kSums]) {
  int previous = 0;
  for (int32_t k = 0; k < p.k_units; ++k) {
    BarrierWait(shared.Full(at.stage), at.parity);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      WideWgmma<C::kTokens>::Bf16(
          sums, SwizzledDescriptor(shared.Weight(at.stage) + group * 64 * 128, i * 32),
          SwizzledDescriptor(shared.Input(at.stage), i * 32), k > 0 || i > 0);
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (k > 0) ReleaseStage(shared, previous, lane);
    previous = at.stage;
    at.Next();
  }
  WgmmaWait<0>();
  ReleaseStage(shared, previous, lane);
}

// A lane's part of a group's 64 rows x 64 of K as A fragments of four steps. NVFP4: 16 bytes of
// elements and 8 of scales.
__device__ __forceinline__ void WidenNvfp4Stage(uint32_t chunk, int warp, int lane,
                                                uint32_t (&a)[4][4]) {
  WidenNvfp4(LoadShared16(chunk + (warp * 32 + lane) * 16),
             LoadShared8(chunk + kNvfp4DataBytes + (warp * 8 + lane / 4) * 8), a);
}
// FP8: rows of 64 bytes.
__device__ __forceinline__ void WidenFp8Stage(uint32_t rows, int warp, int lane,
                                              uint32_t (&a)[4][4]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    uint32_t q[4];
    LoadMatrix4(q, Swizzled<64>(rows, warp * 16 + lane % 16, 2 * c + lane / 16));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      WidenFp8(q[2 * h], a[2 * c + h][0], a[2 * c + h][2]);
      WidenFp8(q[2 * h + 1], a[2 * c + h][1], a[2 * c + h][3]);
    }
  }
}

// The scales of a warp's two groups of eight rows in block `k_block`, each duplicated as a pair of
// bf16.
__device__ __forceinline__ uint2 LoadBlockScales(const GemmParams& p, int32_t row,
                                                 int32_t k_block) {
  const int32_t last = (p.n - 1) / 8;
  const int64_t columns = p.scale_columns;
  const int32_t column = min(k_block, p.scale_columns - 1);
  const float top = __ldg(p.scales + min(row / 8, last) * columns + column);
  const float bottom = __ldg(p.scales + min(row / 8 + 1, last) * columns + column);
  return make_uint2(PackBf16Pair(top, top), PackBf16Pair(bottom, bottom));
}

// For weights converted in registers. Stages are processed in pairs (K is padded), so that the
// fragments' registers alternate.
template <class C>
__device__ __forceinline__ void MultiplyWidened(const GemmShared<C>& shared, const GemmParams& p,
                                                int group, int warp, int lane, int32_t row,
                                                StageCursor<C::kStages>& at,
                                                float (&sums)[C::kSums]) {
  int previous = 0;
  uint32_t a[2][4][4];
  for (int32_t k = 0; k < p.k_units; k += 2) {
    uint2 scales;
    if constexpr (C::kWideBlock) scales = LoadBlockScales(p, row, k / 2);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      BarrierWait(shared.Full(at.stage), at.parity);
      const uint32_t weight = shared.Weight(at.stage) + group * (C::kWeightBytes / 2);
      if constexpr (C::kNvfp4) {
        WidenNvfp4Stage(weight, warp, lane, a[j]);
      } else {
        WidenFp8Stage(weight, warp, lane, a[j]);
      }
      if constexpr (C::kWideBlock) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          a[j][i / 4][i % 4] = MulBf16x2(a[j][i / 4][i % 4], i % 2 == 0 ? scales.x : scales.y);
        }
      }
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        WideWgmma<C::kTokens>::Bf16(sums, a[j][i],
                                    SwizzledDescriptor(shared.Input(at.stage), i * 32),
                                    k > 0 || j > 0 || i > 0);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (k > 0 || j > 0) ReleaseStage(shared, previous, lane);
      previous = at.stage;
      at.Next();
    }
  }
  WgmmaWait<0>();
  ReleaseStage(shared, previous, lane);
}

// Issues the products of a stage with part `part` of the tile's tokens.
template <class C>
__device__ __forceinline__ void StartFp8(const GemmShared<C>& shared, int stage, int group,
                                         int part, float (&sums)[C::kPartSums]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    WideWgmma<C::kTokens / C::kParts>::Fp8(
        sums, SwizzledDescriptor(shared.Weight(stage) + group * 64 * 128, i * 32),
        SwizzledDescriptor(shared.Input(stage), part * (C::kInputBytes / C::kParts) + i * 32),
        i > 0);
  }
  WgmmaCommit();
}

// Adds a part's products of a stage to its sums.
template <class C>
__device__ __forceinline__ void AddPart(const float (&added)[C::kPartSums], const float (&scale)[2],
                                        float* sums) {
#pragma unroll
  for (int i = 0; i < C::kPartSums; ++i)
    sums[i] = C::kBlockScales ? fmaf(added[i], scale[i / 2 % 2], sums[i]) : sums[i] + added[i];
}

// One part after another: registers hold the products of one.
template <class C>
__device__ __forceinline__ void MultiplyFp8InParts(const GemmShared<C>& shared, const GemmParams& p,
                                                   int32_t k_units, int group, int lane,
                                                   int32_t row, StageCursor<C::kStages>& at,
                                                   float (&sums)[C::kSums]) {
  const int32_t last = (p.n - 1) / 8;
  const float* const top = p.scales + static_cast<int64_t>(min(row / 8, last)) * p.scale_columns;
  const float* const bottom =
      p.scales + static_cast<int64_t>(min(row / 8 + 1, last)) * p.scale_columns;
  for (int32_t k = 0; k < k_units; ++k, at.Next()) {
    float scale[2] = {1.0f, 1.0f};
    if constexpr (C::kBlockScales) {
      scale[0] = __ldg(top + k);
      scale[1] = __ldg(bottom + k);
    }
    BarrierWait(shared.Full(at.stage), at.parity);
#pragma unroll
    for (int part = 0; part < C::kParts; ++part) {
      float added[C::kPartSums];
      WgmmaFence();
      StartFp8(shared, at.stage, group, part, added);
      WgmmaWait<0>();
      if (part == C::kParts - 1) ReleaseStage(shared, at.stage, lane);
      AddPart<C>(added, scale, sums + part * C::kPartSums);
    }
  }
}

// Keeps reads of `sums` after the preceding wait.
template <int kCount>
__device__ __forceinline__ void HoldSums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// The next kCount stages, an even number. While a stage's products are added, the tensor cores
// process the next ones. The assembler requires that none are in flight at the end of a loop's
// body.
template <int kCount, class C>
__device__ __forceinline__ void AddFp8Stages(const GemmShared<C>& shared, int group, int lane,
                                             StageCursor<C::kStages>& at, float (&sums)[C::kSums]) {
  const float scale[2] = {1.0f, 1.0f};
  float even[C::kSums];
  float odd[C::kSums];
  const auto start = [&](float(&added)[C::kSums]) {
    const int stage = at.stage;
    BarrierWait(shared.Full(stage), at.parity);
    WgmmaFence();
    StartFp8(shared, stage, group, 0, added);
    at.Next();
    return stage;
  };
  const auto add = [&](int stage, float(&added)[C::kSums]) {
    HoldSums(added);
    ReleaseStage(shared, stage, lane);
    AddPart<C>(added, scale, sums);
  };
  int even_stage = start(even);
#pragma unroll
  for (int i = 1; i < kCount; i += 2) {
    const int odd_stage = start(odd);
    WgmmaWait<1>();
    add(even_stage, even);
    if (i + 1 < kCount) {
      even_stage = start(even);
      WgmmaWait<1>();
    } else {
      WgmmaWait<0>();
    }
    add(odd_stage, odd);
  }
}

// `k_units`: even.
template <class C>
__device__ __forceinline__ void MultiplyFp8Ahead(const GemmShared<C>& shared, int32_t k_units,
                                                 int group, int lane, StageCursor<C::kStages>& at,
                                                 float (&sums)[C::kSums]) {
  static_assert(C::kParts == 1 && !C::kBlockScales);
  int32_t k = 0;
  for (; k + 4 <= k_units; k += 4) AddFp8Stages<4>(shared, group, lane, at, sums);
  if (k < k_units) AddFp8Stages<2>(shared, group, lane, at, sums);
}

// The same in loops of eight stages, which spares half of the points where no products are in
// flight; the second warpgroup starts with four, so that the two reach such points in turns. For
// many tiles: the code is longer, and a short launch waits for it.
template <class C>
__device__ __forceinline__ void MultiplyFp8Long(const GemmShared<C>& shared, int32_t k_units,
                                                int group, int lane, StageCursor<C::kStages>& at,
                                                float (&sums)[C::kSums]) {
  bool fewer = __shfl_sync(~0u, group, 0) == 1;
  for (int32_t left = k_units; left > 0;) {
    if (left >= 8 && !fewer) {
      AddFp8Stages<8>(shared, group, lane, at, sums);
      left -= 8;
    } else if (left >= 4) {
      AddFp8Stages<4>(shared, group, lane, at, sums);
      left -= 4;
    } else {
      AddFp8Stages<2>(shared, group, lane, at, sums);
      left -= 2;
    }
    fewer = false;
  }
}

template <class C>
__device__ __forceinline__ void MultiplyFp8(const GemmShared<C>& shared, const GemmParams& p,
                                            int32_t k_units, int group, int lane, int32_t row,
                                            StageCursor<C::kStages>& at, float (&sums)[C::kSums],
                                            bool many_tiles = false) {
#pragma unroll
  for (int i = 0; i < C::kSums; ++i) sums[i] = 0.0f;
  if constexpr (C::kAhead) {
    if (C::kTokens > 64 && many_tiles) {
      MultiplyFp8Long(shared, k_units, group, lane, at, sums);
    } else {
      MultiplyFp8Ahead(shared, k_units, group, lane, at, sums);
    }
  } else {
    MultiplyFp8InParts(shared, p, k_units, group, lane, row, at, sums);
  }
}

}  // namespace aisp::cuda
