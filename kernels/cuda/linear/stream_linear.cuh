// The kernel for few rows: the whole weight streams once through shared memory, evenly over all multiprocessors.
//
// Work is cut into units of kRows output rows x kStageK of K, numbered along K first. CTA c of G takes units [c U / G,
// (c + 1) U / G): a few whole row tiles and, at its ends, parts of tiles ("stream-K", arXiv:2301.03598). One warp produces:
// it keeps kStages units of weight and activations in flight by the bulk copy engine; warpgroups of consumers multiply, the
// weight being the tensor core's A operand so that tokens are its N. Sums of a tile that several CTAs share go through the
// workspace: whoever arrives last adds them in the order of the CTAs, so that bits do not depend on timing.
//
// Programmatic dependent launch: the producer fills its stages with weights before it waits for the kernel that writes x.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_kernels.h"
#include "kernels/cuda/linear/wgmma.cuh"
#include "kernels/cuda/linear/widen.cuh"

namespace aisp::cuda {

template <StreamFormat kFormatV, int kTokensV, int kGroupsV, int kTilesV, int kStageKV,
          int kStagesV>
struct StreamConfig {
  static constexpr StreamFormat kFormat = kFormatV;
  static constexpr int kTokens = kTokensV;  // N of the instruction
  static constexpr int kGroups = kGroupsV;  // consumer warpgroups
  static constexpr int kTiles = kTilesV;    // tiles of 64 rows per warpgroup
  static constexpr int kStageK = kStageKV;
  static constexpr int kStages = kStagesV;

  static constexpr bool kInput8 =
      kFormat == StreamFormat::kFp8x8 || kFormat == StreamFormat::kFp8x8Block;
  static constexpr bool kNvfp4 = kFormat == StreamFormat::kNvfp4;
  static constexpr bool kBlockScales =
      kFormat == StreamFormat::kFp8Block || kFormat == StreamFormat::kFp8x8Block;
  // Hopper adds FP8 products in fewer bits than f32: sums of a stage are added to f32 by ordinary instructions.
  static constexpr bool kPromote = kInput8 || kBlockScales;
  static constexpr int kRows = kGroups * kTiles * 64;
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kSums = kTokens / 2;  // accumulators of a thread per tile of 64 rows

  static constexpr int kWeightBoxK = kFormat == StreamFormat::kBf16 ? 64 : 128;  // 128 bytes
  static constexpr int kInputBoxK = kInput8 ? 128 : 64;                          // 128 bytes
  static constexpr int kWeightBytes = kNvfp4 ? kRows / 64 * (kStageK / 64) * kNvfp4ChunkBytes
                                             : kRows * 128 * (kStageK / kWeightBoxK);
  static constexpr int kInputBytes = kTokens * 128 * (kStageK / kInputBoxK);
  static constexpr int kStageBytes = (kInputBytes + kWeightBytes + 1023) / 1024 * 1024;
  static constexpr int kSharedBytes = kStages * kStageBytes + 1024 + 2 * 8 * kStages + 16;
  static constexpr int kPartialFloats = kRows * kTokens;

  static_assert(kStageK % kInputBoxK == 0 && (kNvfp4 || kStageK % kWeightBoxK == 0));
  static_assert(!kBlockScales || kStageK == 128);
};

// Shared memory of a CTA by address.
template <class C>
struct StreamShared {
  uint32_t base;  // 1024-aligned
  __device__ uint32_t Input(int stage) const { return base + stage * C::kStageBytes; }
  __device__ uint32_t Weight(int stage) const { return Input(stage) + C::kInputBytes; }
  __device__ uint32_t Full(int stage) const {
    return base + C::kStages * C::kStageBytes + 8 * stage;
  }
  __device__ uint32_t Empty(int stage) const { return Full(stage) + 8 * C::kStages; }
  __device__ uint32_t Flag() const { return Full(2 * C::kStages); }
};

// ---- producer ----

template <class C>
__device__ __forceinline__ void LoadWeightUnit(const StreamShared<C>& shared, int stage,
                                               int32_t unit, const StreamParams& p,
                                               const CUtensorMap* map, uint64_t policy) {
  const int32_t tile = unit / p.k_units;
  const int32_t k_unit = unit - tile * p.k_units;
  if constexpr (C::kNvfp4) {
    constexpr int kBytes = C::kStageK / 64 * kNvfp4ChunkBytes;
#pragma unroll
    for (int g = 0; g < C::kRows / 64; ++g) {
      // A tile may reach beyond the last row group: its surplus rows are computed from that group and not stored.
      const int64_t group = min(tile * (C::kRows / 64) + g, p.row_groups - 1);
      BulkLoad(shared.Weight(stage) + g * kBytes,
               p.nvfp4 + group * p.group_bytes + static_cast<int64_t>(k_unit) * kBytes, kBytes,
               shared.Full(stage), policy);
    }
  } else {
#pragma unroll
    for (int b = 0; b < C::kStageK / C::kWeightBoxK; ++b) {
      TensorLoad(shared.Weight(stage) + b * C::kRows * 128, map,
                 k_unit * C::kStageK + b * C::kWeightBoxK, tile * C::kRows, shared.Full(stage),
                 policy);
    }
  }
}

template <class C>
__device__ __forceinline__ void PrefetchWeightUnit(int32_t unit, const StreamParams& p,
                                                   const CUtensorMap* map, uint64_t policy) {
  const int32_t tile = unit / p.k_units;
  const int32_t k_unit = unit - tile * p.k_units;
  if constexpr (C::kNvfp4) {
    constexpr int kBytes = C::kStageK / 64 * kNvfp4ChunkBytes;
#pragma unroll
    for (int g = 0; g < C::kRows / 64; ++g) {
      const int64_t group = min(tile * (C::kRows / 64) + g, p.row_groups - 1);
      BulkPrefetch(p.nvfp4 + group * p.group_bytes + static_cast<int64_t>(k_unit) * kBytes, kBytes,
                   policy);
    }
  } else {
#pragma unroll
    for (int b = 0; b < C::kStageK / C::kWeightBoxK; ++b) {
      TensorPrefetch(map, k_unit * C::kStageK + b * C::kWeightBoxK, tile * C::kRows, policy);
    }
  }
}

template <class C>
__device__ __forceinline__ void LoadInputUnit(const StreamShared<C>& shared, int stage,
                                              int32_t unit, const StreamParams& p,
                                              const CUtensorMap* map, uint64_t policy) {
  const int32_t k_unit = unit % p.k_units;
#pragma unroll
  for (int b = 0; b < C::kStageK / C::kInputBoxK; ++b) {
    TensorLoad(shared.Input(stage) + b * C::kTokens * 128, map,
               k_unit * C::kStageK + b * C::kInputBoxK, 0, shared.Full(stage), policy);
  }
}

template <class C>
__device__ __forceinline__ void Produce(const StreamShared<C>& shared, int32_t begin, int32_t end,
                                        const StreamParams& p, const CUtensorMap* weight,
                                        const CUtensorMap* input) {
  const uint64_t once = EvictFirstPolicy();
  const uint64_t again = EvictLastPolicy();
  constexpr uint32_t kBytes = C::kWeightBytes + C::kInputBytes;
  const int32_t ahead = min(end, begin + C::kStages);
  for (int32_t unit = begin; unit < ahead; ++unit) {
    const int stage = unit - begin;
    BarrierArriveExpect(shared.Full(stage), kBytes);
    LoadWeightUnit(shared, stage, unit, p, weight, once);
  }
  const int32_t prefetch = min(end, ahead + p.prefetch_units);
  for (int32_t unit = ahead; unit < prefetch; ++unit) PrefetchWeightUnit<C>(unit, p, weight, once);
  WaitForPreviousKernel();
  for (int32_t unit = begin; unit < ahead; ++unit) {
    LoadInputUnit(shared, unit - begin, unit, p, input, again);
  }
  int stage = 0;
  uint32_t parity = 0;
  for (int32_t unit = ahead; unit < end; ++unit) {
    BarrierWait(shared.Empty(stage), parity);
    BarrierArriveExpect(shared.Full(stage), kBytes);
    LoadWeightUnit(shared, stage, unit, p, weight, once);
    LoadInputUnit(shared, stage, unit, p, input, again);
    if (++stage == C::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// ---- consumers ----

// Both operands in shared memory: starts the products of a stage.
template <class C>
__device__ __forceinline__ void MultiplyShared(const StreamShared<C>& shared, int stage, int group,
                                               float (&sums)[C::kTiles][C::kSums]) {
  using Product = Wgmma<C::kTokens>;
  constexpr int kStep = C::kInput8 ? 32 : 16;  // of K; 32 bytes
  const uint32_t input = shared.Input(stage);
  const uint32_t weight = shared.Weight(stage) + group * C::kTiles * 64 * 128;
  WgmmaFence();
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int k = 0; k < C::kStageK / kStep; ++k) {
      const uint64_t a =
          SwizzledDescriptor(weight, i * 64 * 128 + k / 4 * C::kRows * 128 + k % 4 * 32);
      const uint64_t b = SwizzledDescriptor(input, k / 4 * C::kTokens * 128 + k % 4 * 32);
      if constexpr (C::kInput8) {
        Product::Fp8(sums[i], a, b, k > 0);
      } else {
        Product::Bf16(sums[i], a, b);
      }
    }
  }
  WgmmaCommit();
}

// The bytes of a warp's 16 rows x 64 of K, as they lie in shared memory.
struct RawFp8 {
  uint32_t q[2][4];
};
struct RawNvfp4 {
  uint4 words;
  uint2 scales;
};

template <class C>
__device__ __forceinline__ void LoadRaw(const StreamShared<C>& shared, int stage, int tile,
                                        int chunk, int warp, int lane, RawFp8& raw) {
  const int row = tile * 64 + warp * 16 + lane % 16;
  const uint32_t line = shared.Weight(stage) + chunk / 2 * C::kRows * 128 + row * 128;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    LoadMatrix4(raw.q[c], line + (((chunk % 2 * 4 + 2 * c + lane / 16) ^ (lane % 8)) * 16));
  }
}
template <class C>
__device__ __forceinline__ void LoadRaw(const StreamShared<C>& shared, int stage, int tile,
                                        int chunk, int warp, int lane, RawNvfp4& raw) {
  const uint32_t at = shared.Weight(stage) + (tile * (C::kStageK / 64) + chunk) * kNvfp4ChunkBytes;
  raw.words = LoadShared16(at + (warp * 32 + lane) * 16);
  raw.scales = LoadShared8(at + kNvfp4DataBytes + (warp * 8 + lane / 4) * 8);
}

// To the A fragments of four steps of 16.
__device__ __forceinline__ void Widen(const RawFp8& raw, uint32_t (&a)[4][4]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      WidenFp8(raw.q[c][2 * h], a[2 * c + h][0], a[2 * c + h][2]);
      WidenFp8(raw.q[c][2 * h + 1], a[2 * c + h][1], a[2 * c + h][3]);
    }
  }
}
__device__ __forceinline__ void Widen(const RawNvfp4& raw, uint32_t (&a)[4][4]) {
  const uint32_t word[4] = {raw.words.x, raw.words.y, raw.words.z, raw.words.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    WidenNvfp4(word[k], WidenNvfp4Scale(raw.scales.x, k), WidenNvfp4Scale(raw.scales.y, k), a[k]);
  }
}

// The weight is widened in registers, 64 of K at a time, while the products of the 64 before are in flight. Whatever of the
// stage before is still in flight is done when `release_previous` is called.
template <class C, class ReleasePrevious>
__device__ __forceinline__ void MultiplyWidened(const StreamShared<C>& shared, int stage, int group,
                                                int warp, int lane,
                                                float (&sums)[C::kTiles][C::kSums],
                                                const ReleasePrevious& release_previous) {
  using Product = Wgmma<C::kTokens>;
  using Raw = std::conditional_t<C::kNvfp4, RawNvfp4, RawFp8>;
  constexpr int kChunks = C::kStageK / 64;
  static_assert(C::kTiles * kChunks % 2 == 0);
  const uint32_t input = shared.Input(stage);
  uint32_t a[2][4][4];
  Raw raw[2];
  LoadRaw(shared, stage, group * C::kTiles, 0, warp, lane, raw[0]);
#pragma unroll
  for (int j = 0; j < C::kTiles * kChunks; ++j) {
    const int i = j / kChunks;
    const int c = j % kChunks;
    if (j + 1 < C::kTiles * kChunks) {
      LoadRaw(shared, stage, group * C::kTiles + (j + 1) / kChunks, (j + 1) % kChunks, warp, lane,
              raw[(j + 1) % 2]);
    }
    WgmmaWait<1>();
    if (j == 1) release_previous();
    Widen(raw[j % 2], a[j % 2]);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      Product::Bf16(sums[i], a[j % 2][k], SwizzledDescriptor(input, c * C::kTokens * 128 + k * 32),
                    !C::kPromote || c > 0 || k > 0);
    }
    WgmmaCommit();
  }
}

// `row` is the warp's first.
template <class C>
__device__ __forceinline__ void AddStage(const StreamParams& p, int32_t row, int32_t k_unit,
                                         const float (&stage_sums)[C::kTiles][C::kSums],
                                         float (&sums)[C::kTiles][C::kSums]) {
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
    float scale[2] = {1.0f, 1.0f};
    if constexpr (C::kBlockScales) {
      const int32_t top = (row + i * 64) / 8;
      const int32_t last = (p.n - 1) / 8;
      scale[0] = __ldg(p.scales + static_cast<int64_t>(min(top, last)) * p.scale_columns + k_unit);
      scale[1] =
          __ldg(p.scales + static_cast<int64_t>(min(top + 1, last)) * p.scale_columns + k_unit);
    }
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) sums[i][j] += scale[j / 2 % 2] * stage_sums[i][j];
  }
}

// Writes this CTA's part of a tile; true for the CTA that has to finish it, then with all parts in `sums`.
template <class C>
__device__ __forceinline__ bool CombineParts(const StreamShared<C>& shared, const StreamParams& p,
                                             int32_t tile, int thread,
                                             float (&sums)[C::kTiles][C::kSums]) {
  const int32_t ctas = gridDim.x;
  const int32_t first = OwnerOfUnit(tile * p.k_units, ctas, p.units);
  const int32_t last = OwnerOfUnit(tile * p.k_units + p.k_units - 1, ctas, p.units);
  const auto slot = [&](int32_t cta) {
    const bool opens = FirstUnit(cta, ctas, p.units) / p.k_units == tile;
    return reinterpret_cast<float4*>(
               p.partials + (static_cast<int64_t>(cta) * 2 + (opens ? 0 : 1)) * C::kPartialFloats) +
           thread;
  };
  float4* const mine = slot(blockIdx.x);
  constexpr int kQuads = C::kSums / 4;
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      __stcg(
          mine + (i * kQuads + q) * C::kConsumers,
          make_float4(sums[i][4 * q], sums[i][4 * q + 1], sums[i][4 * q + 2], sums[i][4 * q + 3]));
    }
  }
  NamedBarrier(1, C::kConsumers);
  if (thread == 0) {
    // Releases what the barrier above has ordered before, and acquires what the others released.
    const bool finish = AtomicIncrement(p.counters + tile) == static_cast<uint32_t>(last - first);
    if (finish) p.counters[tile] = 0;
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared.Flag()), "r"(finish ? 1 : 0) : "memory");
  }
  NamedBarrier(1, C::kConsumers);
  uint32_t finish;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(finish) : "r"(shared.Flag()) : "memory");
  if (finish == 0) return false;
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) sums[i][j] = 0.0f;
  }
  // Several CTAs' parts at a time, to have more loads in flight.
  constexpr int kBatch = C::kTiles * kQuads >= 8 ? 1 : 8 / (C::kTiles * kQuads);
  for (int32_t cta = first; cta <= last; cta += kBatch) {
    float4 part[kBatch][C::kTiles * kQuads];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const float4* const from = slot(min(cta + b, last));
#pragma unroll
      for (int q = 0; q < C::kTiles * kQuads; ++q) part[b][q] = __ldcg(from + q * C::kConsumers);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (cta + b > last) break;
#pragma unroll
      for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          sums[i][4 * q] += part[b][i * kQuads + q].x;
          sums[i][4 * q + 1] += part[b][i * kQuads + q].y;
          sums[i][4 * q + 2] += part[b][i * kQuads + q].z;
          sums[i][4 * q + 3] += part[b][i * kQuads + q].w;
        }
      }
    }
  }
  return true;
}

__device__ __forceinline__ float SiluMul(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

// Scales, adds the bias and stores a tile of 64 rows.
template <class C>
__device__ __forceinline__ void StoreTile(const StreamParams& p, int32_t row0, int warp, int lane,
                                          const float (&sums)[C::kSums]) {
  const int32_t top = row0 + warp * 16 + lane / 4;
  const int32_t bottom = top + 8;
  const bool has_top = top < p.n;
  const bool has_bottom = bottom < p.n;
  float scale[2] = {1.0f, 1.0f};
  if constexpr (C::kFormat != StreamFormat::kBf16 && !C::kBlockScales) {
    if (has_top) scale[0] = __ldg(p.scales + top);
    if (has_bottom) scale[1] = __ldg(p.scales + bottom);
  }
  float bias[2] = {0.0f, 0.0f};
  if (p.bias != nullptr) {
    if (has_top) bias[0] = __ldg(p.bias + top);
    if (has_bottom) bias[1] = __ldg(p.bias + bottom);
  }
#pragma unroll
  for (int j = 0; j < C::kTokens / 8; ++j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int32_t token = 8 * j + 2 * (lane % 4) + h;
      if (token >= p.rows) continue;
      float x_scale = 1.0f;
      if constexpr (C::kInput8) x_scale = __ldg(p.x_scales + token);
      const float u = sums[4 * j + h] * (scale[0] * x_scale) + bias[0];
      const float v = sums[4 * j + 2 + h] * (scale[1] * x_scale) + bias[1];
      const int64_t line = token * p.y_stride;
      if (p.store == Store::kBf16) {
        __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + line;
        if (has_top) y[top] = __float2bfloat16(u);
        if (has_bottom) y[bottom] = __float2bfloat16(v);
      } else if (p.store == Store::kSiluMulBf16) {
        __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + line;
        if (has_bottom) y[(top - lane / 4) / 2 + lane / 4] = __float2bfloat16(SiluMul(u, v));
      } else {
        float* const y = static_cast<float*>(p.y) + line;
        const bool add = p.store == Store::kAccumulateF32;
        if (has_top) y[top] = add ? y[top] + u : u;
        if (has_bottom) y[bottom] = add ? y[bottom] + v : v;
      }
    }
  }
}

// Into L2: they are needed when a tile is finished, with nothing else to do.
template <class C>
__device__ __forceinline__ void PrefetchScales(const StreamParams& p, int32_t begin, int32_t end) {
  if constexpr (C::kFormat != StreamFormat::kBf16 && !C::kBlockScales) {
    const int32_t row_end = min(((end - 1) / p.k_units + 1) * C::kRows, p.n);
    for (int32_t row = begin / p.k_units * C::kRows + static_cast<int32_t>(threadIdx.x) * 32;
         row < row_end; row += C::kConsumers * 32) {
      PrefetchLine(p.scales + row);
    }
  }
}

template <class C>
__device__ __forceinline__ void Consume(const StreamShared<C>& shared, int32_t begin, int32_t end,
                                        const StreamParams& p) {
  const int thread = threadIdx.x;
  const int group = thread / 128;
  const int warp = thread / 32 % 4;
  const int lane = thread % 32;
  int stage = 0;
  uint32_t parity = 0;
  float sums[C::kTiles][C::kSums];
  PrefetchScales<C>(p, begin, end);
  WaitForPreviousKernel();
  for (int32_t unit = begin; unit < end;) {
    const int32_t tile = unit / p.k_units;
    const int32_t k_begin = unit - tile * p.k_units;
    const int32_t k_end = min(p.k_units, k_begin + (end - unit));
    const int32_t row0 = tile * C::kRows + group * C::kTiles * 64;
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
      for (int j = 0; j < C::kSums; ++j) sums[i][j] = 0.0f;
    }
    const auto release = [&](int s) {
      if (lane == 0) BarrierArrive(shared.Empty(s));
    };
    int previous = -1;
    const auto release_previous = [&] {
      if (previous >= 0) release(previous);
    };
    for (int32_t k = k_begin; k < k_end; ++k) {
      BarrierWait(shared.Full(stage), parity);
      if constexpr (C::kPromote) {
        float stage_sums[C::kTiles][C::kSums];
        if constexpr (C::kInput8) {
          MultiplyShared(shared, stage, group, stage_sums);
        } else {
          MultiplyWidened(shared, stage, group, warp, lane, stage_sums, [] {});
        }
        WgmmaWait<0>();
        release(stage);
        AddStage<C>(p, row0 + warp * 16, k, stage_sums, sums);
      } else {
        if constexpr (C::kFormat == StreamFormat::kBf16) {
          MultiplyShared(shared, stage, group, sums);
          WgmmaWait<1>();
          release_previous();
        } else {
          MultiplyWidened(shared, stage, group, warp, lane, sums, release_previous);
        }
        previous = stage;
      }
      if (++stage == C::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if constexpr (!C::kPromote) {
      WgmmaWait<0>();
      release_previous();
    }
    unit += k_end - k_begin;
    const bool whole = k_begin == 0 && k_end == p.k_units;
    if (whole || CombineParts<C>(shared, p, tile, thread, sums)) {
#pragma unroll
      for (int i = 0; i < C::kTiles; ++i) StoreTile<C>(p, row0 + i * 64, warp, lane, sums[i]);
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    StreamLinearKernel(const __grid_constant__ CUtensorMap weight,
                       const __grid_constant__ CUtensorMap input, const StreamParams p) {
  extern __shared__ uint8_t memory[];
  const StreamShared<C> shared{(SharedAddress(memory) + 1023) & ~1023u};
  if (threadIdx.x == C::kConsumers) {
    PrefetchTensorMap(&weight);
    PrefetchTensorMap(&input);
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      BarrierInit(shared.Full(s), 1);
      BarrierInit(shared.Empty(s), C::kConsumers / 32);
    }
    BarrierInitFence();
  }
  __syncthreads();
  AllowNextKernel();
  const int32_t begin = FirstUnit(blockIdx.x, gridDim.x, p.units);
  const int32_t end = FirstUnit(blockIdx.x + 1, gridDim.x, p.units);
  if (threadIdx.x >= C::kConsumers) {
    if (threadIdx.x == C::kConsumers) Produce(shared, begin, end, p, &weight, &input);
  } else {
    Consume(shared, begin, end, p);
  }
}

// What the host has to know of an instance.
template <class C>
StreamKernel DescribeStreamKernel() {
  StreamKernel kernel;
  kernel.function = reinterpret_cast<const void*>(&StreamLinearKernel<C>);
  kernel.format = C::kFormat;
  kernel.tokens = C::kTokens;
  kernel.rows = C::kRows;
  kernel.stage_k = C::kStageK;
  kernel.stages = C::kStages;
  kernel.stage_bytes = C::kStageBytes;
  kernel.weight_box_k = C::kNvfp4 ? 0 : C::kWeightBoxK;
  kernel.input_box_k = C::kInputBoxK;
  kernel.shared_bytes = C::kSharedBytes;
  kernel.threads = C::kThreads;
  return kernel;
}

}  // namespace aisp::cuda
