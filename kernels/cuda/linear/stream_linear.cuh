// The kernel for few rows: the whole weight streams once through shared memory, evenly over all
// multiprocessors.
//
// Work is cut into units of kRows output rows x kStageK of K, numbered along K first. CTA c of G
// processes units [c U / G, (c + 1) U / G): a few whole row tiles and, at its ends, parts of tiles
// ("stream-K", arXiv:2301.03598). One warp loads weights, one the tokens; consumer warpgroups
// multiply, with the weight as the tensor core's A operand and tokens as N. A shared tile belongs
// to the CTA with its first unit. That is the CTA's last tile, so the others' partial sums have
// usually arrived by then. They publish these in slots, which hold an empty marker before; the
// owner polls the slots, adds the sums in CTA order, so that the result does not depend on timing,
// and resets the slots.
//
// Programmatic dependent launch: if two CTAs fit on a multiprocessor (kResident), the kernel after
// the next one becomes resident as soon as this one ends. It fills its stages with weights, then
// prefetches a few more units to L2 when memory is otherwise idle. With eight tokens kernels know
// that moment, which lasts about 2 us: a CTA raises its flag when it has requested all of its
// weights, and the one waiting beside it reads the flag. A flag only affects the timing of
// prefetches, so one that is late, stale or missing does no harm.
//
// Deadlock: an owner waits only for the later CTAs that share its last tile. Alone on the device,
// all CTAs are resident at once (the grid is at most one per multiprocessor, and earlier kernels
// end without this one). If another worker's kernels occupy multiprocessors, CTAs start in the
// order of their numbers. Then of the running ones only the last owner can wait for one that has
// not started, and all before it end and make room. So unlike chains these kernels may share a
// device.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/f16_input.cuh"
#include "kernels/cuda/linear/multiply.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/split_join.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/stream_kernels.h"
#include "kernels/cuda/linear/stream_loads.cuh"
#include "kernels/cuda/linear/stream_parts.cuh"
#include "kernels/cuda/linear/stream_tile.cuh"
#include "kernels/cuda/linear/stream_warp_multiply.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

namespace aisp::cuda {

// Shared memory addresses of a CTA.
template <class C>
struct StreamShared {
  static constexpr int kConverters = !C::kConvert ? 0 : C::kTokens <= 16 ? 32 : 64;
  // After the consumers: the weights' warp, the tokens' warp, and those that convert.
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
  // Barrier: the tokens are in the format that the products need.
  __device__ uint32_t Ready(int stage) const {
    return C::kConvert ? FullWeight(stage) + 24 * C::kStages : FullInput(stage);
  }
  __device__ SplitJoin<C> Join() const { return {base + kJoinAt}; }
};

// ---- the loading warps ----

// The location of a CTA's next unit.
struct UnitCursor {
  int32_t tile;
  int32_t k;
  int32_t k_units;
  __device__ __forceinline__ UnitCursor(int32_t unit, int32_t units_along_k)
      : tile(unit / units_along_k), k(unit - tile * units_along_k), k_units(units_along_k) {}
  __device__ __forceinline__ void Advance() {
    if (++k == k_units) {
      k = 0;
      ++tile;
    }
  }
};

// The thread that loads weights.
template <class C>
struct WeightProducer {
  const StreamShared<C>& shared;
  const StreamParams& p;
  const CUtensorMap* map;
  int32_t unit;
  int32_t end;
  UnitCursor at;
  WeightCursor<C> cursor;
  uint64_t once = EvictFirstPolicy();

  __device__ __forceinline__ WeightProducer(const StreamShared<C>& in, const StreamParams& params,
                                            const CUtensorMap* weight, int32_t first, int32_t last)
      : shared(in), p(params), map(weight), unit(first), end(last), at(first, params.k_units) {}

  __device__ __forceinline__ void Load() {
    BarrierExpect(shared.FullWeight(cursor.stage), C::kWeightBytes);
    LoadWeights<C>(shared.Weight(cursor.stage), shared.FullWeight(cursor.stage), at.tile, at.k, p,
                   map, once);
    at.Advance();
    cursor.Advance();
    ++unit;
  }
  // At the start, when all stages are free.
  __device__ __forceinline__ void FillStages() {
    for (int32_t left = min(end - unit, C::kStages); left > 0; --left) Load();
  }
  // `flag_before`: this CTA's flag at its start.
  __device__ __forceinline__ void Rest(uint32_t flag_before) {
    // Prefetches every prefetch_stride-th unit into L2, from where it is read later, while memory
    // serves the others.
    if (!C::kAnnounces ||
        (p.prefetch_units > 0 && unit < end && KernelBeforeAskedForAll(flag_before))) {
      for (int32_t i = 0, early = unit + p.prefetch_stride / 2; i < p.prefetch_units && early < end;
           ++i, early += p.prefetch_stride) {
        PrefetchWeightUnit<C>(early, p, map);
      }
    }
    while (unit < end) {
      BarrierWait(shared.Empty(cursor.stage), cursor.parity ^ 1);
      Load();
    }
    if constexpr (C::kAnnounces) AddRelaxed(p.asked_for_all + blockIdx.x, 1);
  }

 private:
  // Waits for the flag of the previous kernel's CTA; false if a stage becomes free before.
  __device__ __forceinline__ bool KernelBeforeAskedForAll(uint32_t flag_before) const {
    while (!BarrierTest(shared.Empty(cursor.stage), cursor.parity ^ 1)) {
      if (LoadRelaxed32(p.asked_for_all + blockIdx.x) != flag_before) return true;
    }
    return false;
  }
};

template <class C>
__device__ __forceinline__ void ProduceInputs(const StreamShared<C>& shared, int32_t begin,
                                              int32_t end, const StreamParams& p,
                                              const CUtensorMap* input) {
  const uint64_t again = EvictLastPolicy();
  WaitForPreviousKernel();
  WeightCursor<C> cursor;
  UnitCursor at(begin, p.k_units);
  for (int32_t left = end - begin; left > 0; --left) {
    BarrierWait(shared.Empty(cursor.stage), cursor.parity ^ 1);
    BarrierExpect(shared.FullInput(cursor.stage), C::kInputBytes);
    LoadInputs<C>(shared.Input(cursor.stage), shared.FullInput(cursor.stage), at.k, input, again);
    at.Advance();
    cursor.Advance();
  }
}

template <class C>
__device__ __forceinline__ void ConvertStream(const StreamShared<C>& shared, int32_t begin,
                                              int32_t end, int thread) {
  WeightCursor<C> cursor;
  for (int32_t unit = begin; unit < end; ++unit) {
    BarrierWait(shared.FullInput(cursor.stage), cursor.parity);
    ConvertInput<C, StreamShared<C>::kConverters>(shared.Input(cursor.stage), thread);
    FenceProxyAsync();
    __syncwarp();
    if (thread % 32 == 0) BarrierArrive(shared.Ready(cursor.stage));
    cursor.Advance();
  }
}

// ---- consumers ----

// Converted FP8 with eight tokens, each warp separately.
template <class C>
__device__ __forceinline__ void MultiplyFp8Fragments(const StreamShared<C>& shared, int32_t k,
                                                     int32_t k_end, WeightCursor<C>& cursor,
                                                     float (&sums)[C::kSums]) {
  const int group = threadIdx.x % C::kRowThreads / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  float sets[4][C::kSums] = {};
#pragma unroll 1
  for (; k < k_end; k += C::kSplits) {
    Fp8Fragments<C> parts;
    BarrierWait(shared.FullWeight(cursor.stage), cursor.parity);
    parts.TakeWeights(shared.Weight(cursor.stage), group, warp, lane);
    BarrierWait(shared.Ready(cursor.stage), cursor.parity);
    parts.TakeTokens(shared.Input(cursor.stage), lane);
    __syncwarp();
    if (lane == 0) BarrierArriveBehind(shared.Empty(cursor.stage), parts.Loaded());
    parts.Multiply(sets);
    cursor.template Advance<C::kSplits>();
  }
#pragma unroll
  for (int j = 0; j < C::kSums; ++j)
    sums[j] = (sets[0][j] + sets[1][j]) + (sets[2][j] + sets[3][j]);
}

template <class C>
__device__ __forceinline__ void SetToZero(float (&sums)[C::kTiles][C::kSums]) {
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) sums[i][j] = 0.0f;
  }
}

// Keeps reads of the sums after a preceding wait, which names no register.
template <class C>
__device__ __forceinline__ void PinSums(float (&sums)[C::kTiles][C::kSums]) {
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) asm volatile("" : "+f"(sums[i][j]));
  }
}

// Multiplies this warpgroup's units of [k_begin, k_end) of a tile: every kSplits-th from `turn` on.
template <class C>
__device__ __forceinline__ void MultiplyStream(const StreamShared<C>& shared, const StreamParams& p,
                                               int32_t row0, int32_t k_begin, int32_t k_end,
                                               int32_t turn, WeightCursor<C>& cursor,
                                               float (&sums)[C::kTiles][C::kSums]) {
  const int group = threadIdx.x % C::kRowThreads / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  SetToZero<C>(sums);
  if constexpr (C::kFp8Fragments) {
    MultiplyFp8Fragments(shared, k_begin + turn, k_end, cursor, sums[0]);
    return;
  }
  const auto release = [&](int s, uint32_t loaded = 0) {
    if (C::kNvfp4 || lane == 0) BarrierArriveBehind(shared.Empty(s), loaded);
  };
  int previous = -1;
  const auto release_previous = [&] {
    if (previous >= 0) release(previous);
  };
#pragma unroll 1
  for (int32_t k = k_begin + turn; k < k_end; k += C::kSplits) {
    const int stage = cursor.stage;
    const uint32_t weight = shared.Weight(stage);
    const uint32_t input = shared.Input(stage);
    BarrierWait(shared.FullWeight(stage), cursor.parity);
    BarrierWait(shared.Ready(stage), cursor.parity);
    if constexpr (C::kByWarp) {
      MultiplyByWarp<C, C::kConvert>(weight, input, group, warp, lane, sums[0]);
      __syncwarp();
      release(stage, __float_as_uint(sums[0][0]));
    } else if constexpr (C::kPromote) {
      float stage_sums[C::kTiles][C::kSums];
      if constexpr (C::kInput8) {
        MultiplyShared<C>(weight, input, group, stage_sums);
      } else {
        MultiplyWidened<C, C::kConvert>(weight, input, group, warp, lane, stage_sums, [] {});
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
        MultiplyWidened<C, C::kConvert>(weight, input, group, warp, lane, sums, release_previous);
      }
      previous = stage;
    }
    cursor.template Advance<C::kSplits>();
  }
  if constexpr (!C::kPromote && !C::kByWarp) {
    WgmmaWait<0>();
    release_previous();
  }
  PinSums<C>(sums);
}

// Prefetches scales and biases into L2, since they are needed when a tile ends and nothing can hide
// the wait.
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
  WeightCursor<C> cursor;
  cursor.stage = threadIdx.x / C::kRowThreads;
  int32_t turn = cursor.stage;  // units of the CTA until this warpgroup's next one
  int32_t tiles = 0;            // number of tiles that the CTA has worked on
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
    MultiplyStream<C>(shared, p, row0, k_begin, k_begin + count, turn, cursor, sums);
    turn = ((turn - count) % C::kSplits + C::kSplits) % C::kSplits;
    unit += count;
    if (!shared.Join().Add(tiles++, sums)) continue;
    if (k_begin > 0) {
      WritePart<C>(p.partials, sums);
      continue;
    }
    if constexpr (!StreamTile<C>::kEarly) load(true);
    if (count < p.k_units) {
      AddParts<C>(p.partials, OwnerOfUnit(tile * p.k_units + p.k_units - 1, gridDim.x, p.units),
                  p.poll, sums);
    }
#pragma unroll
    for (int i = 0; i < C::kTiles; ++i) {
      out[i].Store(p, row0 + i * 64 + warp * 16, lane, sums[i]);
    }
  }
}

template <class C>
__device__ __forceinline__ void InitBarriers(const StreamShared<C>& shared) {
  for (int s = 0; s < C::kStages; ++s) {
    BarrierInit(shared.FullWeight(s), 1);
    BarrierInit(shared.FullInput(s), 1);
    BarrierInit(shared.Empty(s), C::kReleases);
    if constexpr (C::kConvert) {
      BarrierInit(shared.Ready(s), StreamShared<C>::kConverters / 32);
    }
  }
  shared.Join().Init();
  BarrierInitFence();
}

template <class C>
__global__ void __launch_bounds__(StreamShared<C>::kThreads, C::kResident)
    StreamLinearKernel(const __grid_constant__ CUtensorMap weight,
                       const __grid_constant__ CUtensorMap input, const StreamParams p) {
  extern __shared__ uint8_t memory[];
  const StreamShared<C> shared{(SharedAddress(memory) + 1023) & ~1023u};
  const int32_t begin = FirstUnit(blockIdx.x, gridDim.x, p.units);
  const int32_t end = FirstUnit(blockIdx.x + 1, gridDim.x, p.units);
  const int role = static_cast<int>(threadIdx.x) - C::kConsumers;
  WeightProducer<C> weights(shared, p, &weight, begin, end);
  uint32_t flag_before = 0;
  if (role == 0) {
    // The first weights are requested before the other warps begin, since memory may be idle.
    InitBarriers(shared);
    weights.FillStages();
    if constexpr (C::kAnnounces) flag_before = LoadRelaxed32(p.asked_for_all + blockIdx.x);
  }
  if (role == 32) PrefetchMap(&input);
  __syncthreads();
  AllowNextKernel();
  if (role < 0) {
    Consume(shared, begin, end, p);
  } else if (role < 32) {
    if (role == 0) weights.Rest(flag_before);
  } else if (role < 64) {
    if (role == 32) ProduceInputs(shared, begin, end, p, &input);
  } else if constexpr (C::kConvert) {
    ConvertStream(shared, begin, end, role - 64);
  }
}

// An instance's properties for the host.
template <class C>
StreamKernel DescribeStreamKernel() {
  StreamKernel kernel;
  kernel.function = reinterpret_cast<const void*>(&StreamLinearKernel<C>);
  kernel.format = C::kFormat;
  kernel.tokens = C::kTokens;
  kernel.rows = C::kRows;
  kernel.stage_k = C::kStageK;
  kernel.stages = C::kStages;
  kernel.announces = C::kAnnounces;
  kernel.stage_bytes = C::kStageBytes;
  kernel.weight_box_k = C::kNvfp4 ? 0 : C::kWeightBoxK;
  kernel.input_box_k = C::kInputBoxK;
  kernel.shared_bytes = StreamShared<C>::kBytes;
  kernel.threads = StreamShared<C>::kThreads;
  return kernel;
}

}  // namespace aisp::cuda
