// The kernel for few rows: the whole weight streams once through shared memory, evenly over all multiprocessors.
//
// Work is cut into units of kRows output rows x kStageK of K, numbered along K first. CTA c of G takes units [c U / G,
// (c + 1) U / G): a few whole row tiles and, at its ends, parts of tiles ("stream-K", arXiv:2301.03598). One warp brings weights,
// one the tokens; warpgroups of consumers multiply, the weight being the tensor core's A operand so that tokens are its N. A tile
// that several CTAs share belongs to the one that has its first unit: that is its last tile, so the others' parts are mostly there
// by then. They write their sums over words that say "nothing here yet"; the owner polls the sums themselves, adds them in the
// order of the CTAs, so that bits do not depend on timing, and puts the words back.
//
// Programmatic dependent launch: where two CTAs fit a multiprocessor (kResident), the kernel behind the next one moves in as soon
// as this one ends and fills its stages with weights; stream_bring.cuh has what it does besides until its turn comes.
//
// Deadlock: an owner waits for the CTAs behind it that share its last tile, and for no others. Alone on the device all are resident
// at once (the grid is at most one for each multiprocessor, and kernels before this one end without it). Where another worker's
// kernels take multiprocessors, CTAs start in the order of their numbers, so that of those that run only the last owner can wait for
// one that does not, and all before it end and make room. So unlike chains these may share a device.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/chain_tile.cuh"
#include "kernels/cuda/linear/multiply.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/split_join.cuh"
#include "kernels/cuda/linear/stream_bring.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/stream_kernels.h"
#include "kernels/cuda/linear/stream_shared.cuh"
#include "kernels/cuda/linear/stream_tile.cuh"
#include "kernels/cuda/linear/stream_warp_multiply.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

namespace aisp::cuda {

// Keeps what reads the sums behind the wait for them, which names no register.
template <class C>
__device__ __forceinline__ void BehindWait(float (&sums)[C::kTiles][C::kSums]) {
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) asm volatile("" : "+f"(sums[i][j]));
  }
}

template <class C>
__device__ __forceinline__ void Release(const StreamShared<C>& shared, int stage) {
  if (C::kNvfp4 || threadIdx.x % 32 == 0) BarrierArrive(shared.Empty(stage));
}

// FP8 x FP8: a unit's products begin before those of the unit before are waited for.
template <class C>
__device__ __forceinline__ void MultiplyFp8x8(const StreamShared<C>& shared, const StreamParams& p,
                                              int32_t row, int32_t k, int32_t k_end,
                                              StagePlace<C>& place,
                                              float (&sums)[C::kTiles][C::kSums]) {
  const int group = threadIdx.x % C::kRowThreads / 128;
  float part[2][C::kTiles][C::kSums];
  int stage[2];
  const auto start = [&](int i) {
    stage[i] = place.stage;
    BarrierWait(shared.FullWeight(stage[i]), place.parity);
    BarrierWait(shared.Ready(stage[i]), place.parity);
    MultiplyShared<C>(shared.Weight(stage[i]), shared.Input(stage[i]), group, part[i]);
    place.template Advance<C::kSplits>();
  };
  const auto finish = [&](int i, int32_t unit) {
    BehindWait<C>(part[i]);
    Release(shared, stage[i]);
    AddStage<C>(p, row, unit, part[i], sums);
  };
  if (k >= k_end) return;
  start(0);
#pragma unroll 1
  for (;;) {
    const int32_t next = k + C::kSplits;
    if (next >= k_end) {
      WgmmaWait<0>();
      finish(0, k);
      break;
    }
    start(1);
    WgmmaWait<1>();
    finish(0, k);
    k = next + C::kSplits;
    if (k >= k_end) {
      WgmmaWait<0>();
      finish(1, next);
      break;
    }
    start(0);
    WgmmaWait<1>();
    finish(1, next);
  }
}

// Widened FP8 with eight tokens, each warp for itself.
template <class C>
__device__ __forceinline__ void MultiplyFp8Fragments(const StreamShared<C>& shared, int32_t k,
                                                     int32_t k_end, StagePlace<C>& place,
                                                     float (&sums)[C::kSums]) {
  const int group = threadIdx.x % C::kRowThreads / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  float sets[4][C::kSums] = {};
#pragma unroll 1
  for (; k < k_end; k += C::kSplits) {
    Fp8Fragments<C> parts;
    BarrierWait(shared.FullWeight(place.stage), place.parity);
    parts.TakeWeights(shared.Weight(place.stage), group, warp, lane);
    BarrierWait(shared.Ready(place.stage), place.parity);
    parts.TakeTokens(shared.Input(place.stage), lane);
    __syncwarp();
    Release(shared, place.stage);
    parts.Multiply(sets);
    place.template Advance<C::kSplits>();
  }
#pragma unroll
  for (int j = 0; j < C::kSums; ++j)
    sums[j] = (sets[0][j] + sets[1][j]) + (sets[2][j] + sets[3][j]);
}

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
  if constexpr (C::kInput8) {
    MultiplyFp8x8(shared, p, row0 + warp * 16, k_begin + turn, k_end, place, sums);
    return;
  } else if constexpr (C::kFp8Fragments) {
    MultiplyFp8Fragments(shared, k_begin + turn, k_end, place, sums[0]);
    return;
  }
  int previous = -1;
  const auto release_previous = [&] {
    if (previous >= 0) Release(shared, previous);
  };
#pragma unroll 1
  for (int32_t k = k_begin + turn; k < k_end; k += C::kSplits) {
    const int stage = place.stage;
    const uint32_t weight = shared.Weight(stage);
    const uint32_t input = shared.Input(stage);
    BarrierWait(shared.FullWeight(stage), place.parity);
    BarrierWait(shared.Ready(stage), place.parity);
    if constexpr (C::kByWarp) {
      MultiplyByWarp<C, C::kConvert>(weight, input, group, warp, lane, sums[0]);
      __syncwarp();
      Release(shared, stage);
    } else if constexpr (C::kPromote) {
      float stage_sums[C::kTiles][C::kSums];
      MultiplyWidened<C, C::kConvert>(weight, input, group, warp, lane, stage_sums, [] {});
      WgmmaWait<0>();
      Release(shared, stage);
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
    place.template Advance<C::kSplits>();
  }
  if constexpr (!C::kPromote && !C::kByWarp) {
    WgmmaWait<0>();
    release_previous();
  }
  BehindWait<C>(sums);
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
    // Of the CTAs that share the tile. Found early, but for NVFP4, whose products leave no register free.
    const auto find_last = [&] {
      auto last = static_cast<int32_t>(blockIdx.x);
      while (p.share.First(last + 1) < (tile + 1) * p.k_units) ++last;
      return last;
    };
    const int32_t last = C::kNvfp4 ? 0 : find_last();
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
    if (k_begin > 0) {
      WritePart<C>(p.partials, sums);
      continue;
    }
    if constexpr (!StreamTile<C>::kEarly) load(true);
    if (count < p.k_units) {
      AddParts<C>(p.partials, C::kNvfp4 ? find_last() : last, sums);
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
  const int32_t begin = p.share.First(static_cast<int32_t>(blockIdx.x));
  const int32_t end = p.share.First(static_cast<int32_t>(blockIdx.x) + 1);
  const int role = static_cast<int>(threadIdx.x) - C::kConsumers;
  WeightProducer<C> weights(shared, p, &weight, begin, end);
  uint32_t told = 0;
  if (role == 0) {
    // The first weights are asked for before anybody else begins: until then memory may have nothing to do.
    InitBarriers(shared);
    weights.FillStages();
    if (C::kResident > 1) told = LoadWordRelaxed(p.asked_for_all + blockIdx.x);
  }
  if (role == 32) PrefetchMap(&input);
  __syncthreads();
  AllowNextKernel();
  if (role < 0) {
    Consume(shared, begin, end, p);
  } else if (role < 32) {
    if (role == 0) weights.Rest(told);
  } else if (role < 64) {
    if (role == 32) ProduceInputs(shared, begin, end, p, &input);
  } else if constexpr (C::kConvert) {
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
  kernel.rows = C::kRows;
  kernel.stage_k = C::kStageK;
  kernel.stages = C::kStages;
  kernel.resident = C::kResident;
  kernel.stage_bytes = C::kStageBytes;
  kernel.weight_box_k = C::kNvfp4 ? 0 : C::kWeightBoxK;
  kernel.input_box_k = C::kInputBoxK;
  kernel.shared_bytes = StreamShared<C>::kBytes;
  kernel.threads = StreamShared<C>::kThreads;
  return kernel;
}

}  // namespace aisp::cuda
