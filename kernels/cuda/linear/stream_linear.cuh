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

#include "kernels/cuda/linear/multiply.cuh"
#include "kernels/cuda/linear/multiply_spread.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/split_join.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/stream_kernels.h"
#include "kernels/cuda/linear/stream_loads.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

namespace aisp::cuda {

// Shared memory of a CTA by address.
template <class C>
struct StreamShared {
  // Behind the consumers: a warp that produces, and one that brings the token where that is spread.
  static constexpr int kThreads = C::kConsumers + (C::kSpread ? 64 : 32);
  static constexpr int kFlagAt = C::kStages * (C::kStageBytes + 2 * 8);
  static constexpr int kJoinAt = kFlagAt + 16;
  static constexpr int kBytes = 1024 + kJoinAt + SplitJoin<C>::kBytes;
  static_assert(C::kSplits <= 4);

  uint32_t base;  // 1024-aligned
  __device__ uint32_t Input(int stage) const { return base + stage * C::kStageBytes; }
  __device__ uint32_t Weight(int stage) const { return Input(stage) + C::kInputBytes; }
  __device__ uint32_t Full(int stage) const {
    return base + C::kStages * C::kStageBytes + 8 * stage;
  }
  __device__ uint32_t Empty(int stage) const { return Full(stage) + 8 * C::kStages; }
  __device__ uint32_t FullInput(int stage) const { return Full(stage); }
  __device__ uint32_t Flag(int split) const { return base + kFlagAt + 4 * split; }
  __device__ SplitJoin<C> Join() const { return {base + kJoinAt}; }
};

// ---- producer ----

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
    BarrierExpect(shared.Full(stage), kBytes);
    LoadWeightUnit<C>(shared.Weight(stage), shared.Full(stage), unit, p, weight, once);
  }
  const int32_t prefetch = min(end, ahead + p.prefetch_units);
  for (int32_t unit = ahead; unit < prefetch; ++unit) PrefetchWeightUnit<C>(unit, p, weight, once);
  WaitForPreviousKernel();
  for (int32_t unit = begin; unit < ahead; ++unit) {
    const int s = unit - begin;
    LoadInputUnit<C>(shared.Input(s), shared.Full(s), unit, p, input, again);
  }
  int stage = 0;
  uint32_t parity = 0;
  for (int32_t unit = ahead; unit < end; ++unit) {
    BarrierWait(shared.Empty(stage), parity);
    BarrierExpect(shared.Full(stage), kBytes);
    LoadWeightUnit<C>(shared.Weight(stage), shared.Full(stage), unit, p, weight, once);
    LoadInputUnit<C>(shared.Input(stage), shared.Full(stage), unit, p, input, again);
    if (++stage == C::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// Where the token is spread: the weight alone.
template <class C>
__device__ __forceinline__ void ProduceWeights(const StreamShared<C>& shared, int32_t begin,
                                               int32_t end, const StreamParams& p,
                                               const CUtensorMap* weight) {
  const uint64_t once = EvictFirstPolicy();
  StagePlace<C> place;
  for (int32_t unit = begin; unit < end; ++unit) {
    BarrierWait(shared.Empty(place.stage), place.parity ^ 1);
    BarrierExpect(shared.Full(place.stage), C::kWeightBytes);
    LoadWeightUnit<C>(shared.Weight(place.stage), shared.Full(place.stage), unit, p, weight, once);
    place.Advance();
  }
}

// ---- consumers ----

// Writes this CTA's part of a tile; true for the CTA that has to finish it, then with all parts in `sums`.
template <class C>
__device__ __forceinline__ bool CombineParts(const StreamShared<C>& shared, const StreamParams& p,
                                             int32_t tile, float (&sums)[C::kTiles][C::kSums]) {
  const int thread = threadIdx.x % C::kRowThreads;
  const int split = threadIdx.x / C::kRowThreads;
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
          mine + (i * kQuads + q) * C::kRowThreads,
          make_float4(sums[i][4 * q], sums[i][4 * q + 1], sums[i][4 * q + 2], sums[i][4 * q + 3]));
    }
  }
  NamedSync(2 + split, C::kRowThreads);
  if (thread == 0) {
    // Releases what the barrier above has ordered before, and acquires what the others released.
    const bool finish = AtomicIncrement(p.counters + tile) == static_cast<uint32_t>(last - first);
    if (finish) p.counters[tile] = 0;
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared.Flag(split)), "r"(finish ? 1 : 0)
                 : "memory");
  }
  NamedSync(2 + split, C::kRowThreads);
  uint32_t finish;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(finish) : "r"(shared.Flag(split)) : "memory");
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
      for (int q = 0; q < C::kTiles * kQuads; ++q) part[b][q] = __ldcg(from + q * C::kRowThreads);
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
  const int group = thread % C::kRowThreads / 128;
  const int warp = thread / 32 % 4;
  const int lane = thread % 32;
  StagePlace<C> place;
  place.stage = thread / C::kRowThreads;
  int32_t turn = thread / C::kRowThreads;  // units of the CTA until this warpgroup's next
  int32_t tiles = 0;                       // that the CTA has had a part in
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
    for (int32_t k = k_begin + turn; k < k_end; k += C::kSplits) {
      const int stage = place.stage;
      BarrierWait(shared.Full(stage), place.parity);
      if constexpr (C::kSpread) {
        MultiplySpread<C>(shared.Weight(stage), shared.Input(stage), group, warp, lane, sums[0]);
        release(stage);
      } else if constexpr (C::kPromote) {
        float stage_sums[C::kTiles][C::kSums];
        if constexpr (C::kInput8) {
          MultiplyShared<C>(shared.Weight(stage), shared.Input(stage), group, stage_sums);
        } else {
          MultiplyWidened<C>(shared.Weight(stage), shared.Input(stage), group, warp, lane,
                             stage_sums, [] {});
        }
        WgmmaWait<0>();
        release(stage);
        AddStage<C>(p, row0 + warp * 16, k, stage_sums, sums);
      } else {
        if constexpr (C::kFormat == StreamFormat::kBf16) {
          MultiplyShared<C>(shared.Weight(stage), shared.Input(stage), group, sums);
          WgmmaWait<1>();
          release_previous();
        } else {
          MultiplyWidened<C>(shared.Weight(stage), shared.Input(stage), group, warp, lane, sums,
                             release_previous);
        }
        previous = stage;
      }
      place.template Advance<C::kSplits>();
    }
    if constexpr (!C::kPromote && !C::kSpread) {
      WgmmaWait<0>();
      release_previous();
    }
    const int32_t count = k_end - k_begin;
    turn = ((turn - count) % C::kSplits + C::kSplits) % C::kSplits;
    unit += count;
    if (!shared.Join().Add(tiles++, sums)) continue;
    if constexpr (C::kSpread) FoldSpread(sums[0], lane);
    if (count == p.k_units || CombineParts<C>(shared, p, tile, sums)) {
#pragma unroll
      for (int i = 0; i < C::kTiles; ++i) StoreTile<C>(p, row0 + i * 64, warp, lane, sums[i]);
    }
  }
}

template <class C>
__global__ void __launch_bounds__(StreamShared<C>::kThreads, 1)
    StreamLinearKernel(const __grid_constant__ CUtensorMap weight,
                       const __grid_constant__ CUtensorMap input, const StreamParams p) {
  extern __shared__ uint8_t memory[];
  const StreamShared<C> shared{(SharedAddress(memory) + 1023) & ~1023u};
  if (threadIdx.x == C::kConsumers) {
    PrefetchMap(&weight);
    PrefetchMap(&input);
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      BarrierInit(shared.Full(s), C::kSpread ? 2 : 1);
      BarrierInit(shared.Empty(s), C::kRowThreads / 32);
    }
    shared.Join().Init();
    BarrierInitFence();
  }
  __syncthreads();
  AllowNextKernel();
  const int32_t begin = FirstUnit(blockIdx.x, gridDim.x, p.units);
  const int32_t end = FirstUnit(blockIdx.x + 1, gridDim.x, p.units);
  if (threadIdx.x >= C::kConsumers) {
    const int role = threadIdx.x - C::kConsumers;
    if constexpr (!C::kSpread) {
      if (role == 0) Produce(shared, begin, end, p, &weight, &input);
    } else if (role >= 32) {
      AwaitSpreadZeros<C>();
      WaitForPreviousKernel();
      StagePlace<C> place;
      BringSpreadUnits<C>(shared, p, begin, end, place, role - 32);
    } else if (role == 0) {
      ProduceWeights(shared, begin, end, p, &weight);
    }
  } else {
    if constexpr (C::kSpread) ClearSpreadInputs<C>(shared);
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
  kernel.limit = C::kSpread ? 1 : C::kTokens;
  kernel.rows = C::kRows;
  kernel.stage_k = C::kStageK;
  kernel.stages = C::kStages;
  kernel.stage_bytes = C::kStageBytes;
  kernel.weight_box_k = C::kNvfp4 ? 0 : C::kWeightBoxK;
  kernel.input_box_k = C::kInputBoxK;
  kernel.shared_bytes = StreamShared<C>::kBytes;
  kernel.threads = StreamShared<C>::kThreads;
  return kernel;
}

}  // namespace aisp::cuda
