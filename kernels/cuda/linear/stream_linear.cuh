// The kernel for few rows: the whole weight streams once through shared memory, evenly over all multiprocessors.
//
// Work is cut into units of kRows output rows x kStageK of K, numbered along K first. CTA c of G takes units [c U / G,
// (c + 1) U / G): a few whole row tiles and, at its ends, parts of tiles ("stream-K", arXiv:2301.03598). One warp brings weights,
// one the tokens; warpgroups of consumers multiply, the weight being the tensor core's A operand so that tokens are its N. A tile
// that several CTAs share belongs to the one that has its first unit: that is its last tile, so the others' parts are mostly there
// by then. They write their sums over words that say "nothing here yet"; the owner polls the sums themselves, adds them in the
// order of the CTAs, so that bits do not depend on timing, and puts the words back.
//
// Programmatic dependent launch: two CTAs fit a multiprocessor, so the kernel behind the next one moves in as soon as this one
// ends and fills its stages with weights: that is when memory has nothing else to do.
//
// Deadlock: owners wait for CTAs of higher numbers, so all must be resident at once; the grid is at most one for each
// multiprocessor. Kernels before this one end without it.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/chain_tile.cuh"
#include "kernels/cuda/linear/f16_input.cuh"
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
  // FP8 weights with few tokens: these become f16 in their stage (f16_input.h).
  static constexpr bool kConvert = C::kF16 && C::kTokens <= 32;
  static constexpr int kConverters = !kConvert ? 0 : C::kTokens <= 16 ? 32 : 64;
  // Behind the consumers: the warp of the weights, that of the tokens, and those that convert.
  static constexpr int kThreads = C::kConsumers + 64 + kConverters;
  static constexpr int kJoinAt = C::kStages * (C::kStageBytes + 4 * 8);
  static constexpr int kBytes = 1024 + kJoinAt + SplitJoin<C>::kBytes;

  uint32_t base;  // 1024-aligned
  __device__ uint32_t Input(int stage) const { return base + stage * C::kStageBytes; }
  __device__ uint32_t Weight(int stage) const { return Input(stage) + C::kInputBytes; }
  __device__ uint32_t FullWeight(int stage) const {
    return base + C::kStages * C::kStageBytes + 8 * stage;
  }
  __device__ uint32_t FullInput(int stage) const { return FullWeight(stage) + 8 * C::kStages; }
  __device__ uint32_t Empty(int stage) const { return FullWeight(stage) + 16 * C::kStages; }
  // The tokens are there in the form that the products need.
  __device__ uint32_t Ready(int stage) const {
    return kConvert ? FullWeight(stage) + 24 * C::kStages : FullInput(stage);
  }
  __device__ SplitJoin<C> Join() const { return {base + kJoinAt}; }
};

// ---- the warps that bring things ----

// Where a CTA's next unit lies.
struct UnitPlace {
  int32_t tile;
  int32_t k;
  int32_t k_units;
  __device__ __forceinline__ UnitPlace(int32_t unit, int32_t units_along_k)
      : tile(unit / units_along_k), k(unit - tile * units_along_k), k_units(units_along_k) {}
  __device__ __forceinline__ void Advance() {
    if (++k == k_units) {
      k = 0;
      ++tile;
    }
  }
};

template <class C>
__device__ __forceinline__ void ProduceWeights(const StreamShared<C>& shared, int32_t begin,
                                               int32_t end, const StreamParams& p,
                                               const CUtensorMap* weight) {
  const uint64_t once = EvictFirstPolicy();
  StagePlace<C> place;
  UnitPlace at(begin, p.k_units);
  for (int32_t left = end - begin; left > 0; --left) {
    BarrierWait(shared.Empty(place.stage), place.parity ^ 1);
    BarrierExpect(shared.FullWeight(place.stage), C::kWeightBytes);
    LoadWeights<C>(shared.Weight(place.stage), shared.FullWeight(place.stage), at.tile, at.k, p,
                   weight, once);
    at.Advance();
    place.Advance();
  }
}

template <class C>
__device__ __forceinline__ void ProduceInputs(const StreamShared<C>& shared, int32_t begin,
                                              int32_t end, const StreamParams& p,
                                              const CUtensorMap* input) {
  const uint64_t again = EvictLastPolicy();
  WaitForPreviousKernel();
  StagePlace<C> place;
  UnitPlace at(begin, p.k_units);
  for (int32_t left = end - begin; left > 0; --left) {
    BarrierWait(shared.Empty(place.stage), place.parity ^ 1);
    BarrierExpect(shared.FullInput(place.stage), C::kInputBytes);
    LoadInputs<C>(shared.Input(place.stage), shared.FullInput(place.stage), at.k, input, again);
    at.Advance();
    place.Advance();
  }
}

template <class C>
__device__ __forceinline__ void ConvertStream(const StreamShared<C>& shared, int32_t begin,
                                              int32_t end, int thread) {
  StagePlace<C> place;
  for (int32_t unit = begin; unit < end; ++unit) {
    BarrierWait(shared.FullInput(place.stage), place.parity);
    ConvertInput<C, StreamShared<C>::kConverters>(shared.Input(place.stage), thread);
    FenceProxyAsync();
    __syncwarp();
    if (thread % 32 == 0) BarrierArrive(shared.Ready(place.stage));
    place.Advance();
  }
}

// ---- a finished tile ----

__device__ __forceinline__ float SiluMul(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

// A thread's two rows of a tile of 64: what it needs beside the sums, fetched before the products.
template <class C>
struct StreamTile {
  static constexpr int kOwnTokens = C::kTokens / 4;  // a thread has sums of these, for its two rows
  // Before the products, where there are registers.
  static constexpr bool kEarly =
      C::kTokens <= 32 && (C::kFormat == StreamFormat::kBf16 || C::kInput8);
  static constexpr bool kHeld = C::kTokens <= 32;

  int32_t row[2];
  bool has[2];
  float scale[2];
  float bias[2] = {0.0f, 0.0f};
  float x_scale[kHeld ? kOwnTokens : 1];
  float old[kHeld ? C::kSums : 1];  // what is added to

  static __device__ __forceinline__ int32_t Token(int i, int lane) {
    return i / 2 * 8 + 2 * (lane % 4) + i % 2;
  }

  __device__ __forceinline__ void Load(const StreamParams& p, int32_t top, int lane, bool needed) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = top + 8 * r;
      has[r] = needed && row[r] < p.n;
      scale[r] = StreamShared<C>::kConvert ? kF16Divisor : 1.0f;
      if constexpr (C::kFormat != StreamFormat::kBf16 && !C::kBlockScales) {
        if (has[r]) scale[r] *= __ldg(p.scales + row[r]);
      }
      if (p.bias != nullptr && has[r]) bias[r] = __ldg(p.bias + row[r]);
    }
    if constexpr (kHeld) {
#pragma unroll
      for (int i = 0; i < kOwnTokens; ++i) x_scale[i] = InputScale(p, Token(i, lane));
#pragma unroll
      for (int i = 0; i < C::kSums; ++i) {
        old[i] = Old(p, Token(i / 4 * 2 + i % 2, lane), i / 2 % 2);
      }
    }
  }

  // Scales, adds the bias and stores.
  __device__ __forceinline__ void Store(const StreamParams& p, int32_t group_row, int lane,
                                        const float (&sums)[C::kSums]) const {
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const int32_t token = Token(i, lane);
      if (token >= p.rows) continue;
      const int at = i / 2 * 4 + i % 2;
      float scale_of_x;
      if constexpr (kHeld) {
        scale_of_x = x_scale[i];
      } else {
        scale_of_x = InputScale(p, token);
      }
      const float u = sums[at] * (scale[0] * scale_of_x) + bias[0];
      const float v = sums[at + 2] * (scale[1] * scale_of_x) + bias[1];
      const int64_t line = token * p.y_stride;
      if (p.store == Store::kBf16) {
        __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + line;
        if (has[0]) y[row[0]] = __float2bfloat16(u);
        if (has[1]) y[row[1]] = __float2bfloat16(v);
      } else if (p.store == Store::kSiluMulBf16) {
        __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + line;
        if (has[1]) y[group_row / 2 + lane / 4] = __float2bfloat16(SiluMul(u, v));
      } else {
        float* const y = static_cast<float*>(p.y) + line;
        float before[2];
        if constexpr (kHeld) {
          before[0] = old[at];
          before[1] = old[at + 2];
        } else {
          before[0] = Old(p, token, 0);
          before[1] = Old(p, token, 1);
        }
        if (has[0]) y[row[0]] = before[0] + u;
        if (has[1]) y[row[1]] = before[1] + v;
      }
    }
  }

 private:
  static __device__ __forceinline__ float InputScale(const StreamParams& p, int32_t token) {
    if constexpr (!C::kInput8) return 1.0f;
    return token < p.rows ? __ldcg(p.x_scales + token) : 1.0f;
  }
  __device__ __forceinline__ float Old(const StreamParams& p, int32_t token, int r) const {
    if (p.store != Store::kAccumulateF32 || !has[r] || token >= p.rows) return 0.0f;
    return __ldcg(static_cast<const float*>(p.y) + token * p.y_stride + row[r]);
  }
};

// ---- consumers ----

// Multiplies this warpgroup's units of [k_begin, k_end) of a tile: every kSplits-th from number `turn` on.
template <class C>
__device__ __forceinline__ void MultiplyStream(const StreamShared<C>& shared, const StreamParams& p,
                                               int32_t row0, int32_t k_begin, int32_t k_end,
                                               int32_t turn, StagePlace<C>& place,
                                               float (&sums)[C::kTiles][C::kSums]) {
  const int group = threadIdx.x % C::kRowThreads / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
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
#pragma unroll 1
  for (int32_t k = k_begin + turn; k < k_end; k += C::kSplits) {
    const int stage = place.stage;
    const uint32_t weight = shared.Weight(stage);
    const uint32_t input = shared.Input(stage);
    BarrierWait(shared.FullWeight(stage), place.parity);
    BarrierWait(shared.Ready(stage), place.parity);
    if constexpr (C::kSpread) {
      MultiplySpread<C>(weight, input, group, warp, lane, sums[0]);
      release(stage);
    } else if constexpr (C::kPromote) {
      float stage_sums[C::kTiles][C::kSums];
      if constexpr (C::kInput8) {
        MultiplyShared<C>(weight, input, group, stage_sums);
      } else {
        MultiplyWidened<C, StreamShared<C>::kConvert>(weight, input, group, warp, lane, stage_sums,
                                                      [] {});
      }
      WgmmaWait<0>();
      release(stage);
      AddStage<C>(p, row0 + warp * 16, k, stage_sums, sums);
    } else {
      if constexpr (C::kFormat == StreamFormat::kBf16) {
        MultiplyShared<C>(weight, input, group, sums);
        WgmmaWait<1>();
        release_previous();
      } else {
        MultiplyWidened<C, StreamShared<C>::kConvert>(weight, input, group, warp, lane, sums,
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
  // Keeps what reads the sums behind the wait, which names no register.
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) asm volatile("" : "+f"(sums[i][j]));
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
  const int group = threadIdx.x % C::kRowThreads / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  StagePlace<C> place;
  place.stage = threadIdx.x / C::kRowThreads;
  int32_t turn = place.stage;  // units of the CTA until this warpgroup's next
  int32_t tiles = 0;           // that the CTA has had a part in
  float sums[C::kTiles][C::kSums];
  PrefetchScales<C>(p, begin, end);
  WaitForPreviousKernel();
  for (int32_t unit = begin; unit < end;) {
    const int32_t tile = unit / p.k_units;
    const int32_t k_begin = unit - tile * p.k_units;
    const int32_t count = min(p.k_units - k_begin, end - unit);
    const int32_t row0 = tile * C::kRows + group * C::kTiles * 64;
    StreamTile<C> out[C::kTiles];
    const auto load = [&](bool needed) {
#pragma unroll
      for (int i = 0; i < C::kTiles; ++i) {
        out[i].Load(p, row0 + i * 64 + warp * 16 + lane / 4, lane, needed);
      }
    };
    if constexpr (StreamTile<C>::kEarly) load(k_begin == 0 && SplitJoin<C>::GoesOn(tiles));
    MultiplyStream<C>(shared, p, row0, k_begin, k_begin + count, turn, place, sums);
    turn = ((turn - count) % C::kSplits + C::kSplits) % C::kSplits;
    unit += count;
    if (!shared.Join().Add(tiles++, sums)) continue;
    if constexpr (C::kSpread) FoldSpread(sums[0], lane);
    if (k_begin > 0) {
      WritePart<C>(p.partials, sums);
      continue;
    }
    if constexpr (!StreamTile<C>::kEarly) load(true);
    if (count < p.k_units) {
      AddParts<C>(p.partials, OwnerOfUnit(tile * p.k_units + p.k_units - 1, gridDim.x, p.units),
                  sums);
    }
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i) {
      out[i].Store(p, row0 + i * 64 + warp * 16, lane, sums[i]);
    }
  }
}

template <class C>
__global__ void __launch_bounds__(StreamShared<C>::kThreads, C::kResident)
    StreamLinearKernel(const __grid_constant__ CUtensorMap weight,
                       const __grid_constant__ CUtensorMap input, const StreamParams p) {
  extern __shared__ uint8_t memory[];
  const StreamShared<C> shared{(SharedAddress(memory) + 1023) & ~1023u};
  if (threadIdx.x == C::kConsumers) PrefetchMap(&weight);
  if (threadIdx.x == C::kConsumers + 32) PrefetchMap(&input);
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      BarrierInit(shared.FullWeight(s), 1);
      BarrierInit(shared.FullInput(s), 1);
      BarrierInit(shared.Empty(s), C::kRowThreads / 32);
      if constexpr (StreamShared<C>::kConvert) {
        BarrierInit(shared.Ready(s), StreamShared<C>::kConverters / 32);
      }
    }
    shared.Join().Init();
    BarrierInitFence();
  }
  __syncthreads();
  AllowNextKernel();
  const int32_t begin = FirstUnit(blockIdx.x, gridDim.x, p.units);
  const int32_t end = FirstUnit(blockIdx.x + 1, gridDim.x, p.units);
  const int role = static_cast<int>(threadIdx.x) - C::kConsumers;
  if (role < 0) {
    if constexpr (C::kSpread) ClearSpreadInputs<C>(shared);
    Consume(shared, begin, end, p);
  } else if (role < 32) {
    if (role == 0) ProduceWeights(shared, begin, end, p, &weight);
  } else if constexpr (C::kSpread) {
    AwaitSpreadZeros<C>();
    WaitForPreviousKernel();
    StagePlace<C> place;
    BringSpreadUnits<C>(shared, p, begin, end, place, role - 32);
  } else if (role < 64) {
    if (role == 32) ProduceInputs(shared, begin, end, p, &input);
  } else if constexpr (StreamShared<C>::kConvert) {
    ConvertStream(shared, begin, end, role - 64);
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
