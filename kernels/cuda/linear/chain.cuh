// The kernel for several layers in one launch, for few rows: the weights of all of them stream through a ring of stages,
// without a pause while a layer's sums are put together and become the next one's input.
//
// Every CTA takes its share of each step's units as in stream_linear.cuh. Its warps have one job each (the norm warp may have two),
// and meet at barriers in shared memory only:
// - the weight warp fills stages as soon as they are free, through all steps, and waits for no data;
// - the input warp waits until a step's input is complete (a counter in global memory), then has its part of each stage brought;
// - with FP8 weights the norm warp and another make f16 of the first step's input (f16_input.h);
// - the norm warp turns the sums of squares that the step before has left into 1 / rms, for steps with a norm in front;
// - the consumers multiply. A tile that several CTAs share belongs to the one that has its first unit: that is its last tile in
//   the step, so the others' parts are mostly there by then. They write their sums over words that say "nothing here yet" and
//   the owner polls the sums themselves, adds them in the order of the CTAs and puts the words back.
//
// A norm in front has no pass of its own: whoever completes a tile of the residual stream writes h * gain in bf16 (in
// f16 for FP8 weights), and the layer's outputs are multiplied by 1 / rms at its end.
//
// How much is in flight: the weight warp asks for 64 KiB at a time (48 where blocks of weights have scales), not for the ring. That
// keeps memory busy; a whole ring of every CTA would be a queue of 4 us in which sums, counters and inputs stand too, and in which
// about 25 multiprocessors are served 20 % faster than the rest. So all are served alike, and equal shares are right.
//
// Two rings: while a step's sums are put together, memory goes on until the weights' stages are full; what the tokens bring comes from
// L2 and needs few stages. Where that was seen to be faster, weights have all that is left of shared memory; elsewhere both go round
// together, in a ring of stages for both.
//
// Order of memory: consumers write, fence towards the copy engine and release the counter, a warp at a time and once a step (a
// release waits for all that its warp has written, 2 us under load); the input warp acquires the counter, fences, and lets the
// copy engine read. Everything later in the chain is ordered behind that, so buffers of a step may be written again two steps on,
// and parts one step on.
//
// Deadlock: CTAs wait for each other, so all must be resident at once. The grid is at most one CTA for each multiprocessor and one
// fits beside whatever small kernel sits there. Kernels before this one end without it, and kernels behind it start only once
// every CTA of this one runs. But two chains that run at once in two streams could take half of the device each: chains of a
// device belong to one stream.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/chain_tile.cuh"
#include "kernels/cuda/linear/f16_input.cuh"
#include "kernels/cuda/linear/multiply.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/stream_loads.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

namespace aisp::cuda {

// ---- the three warps that bring things ----

template <class C>
__device__ __forceinline__ void BringWeights(const ChainShared<C>& shared,
                                             const ChainParams& chain) {
  const uint64_t once = EvictFirstPolicy();
  StagePlace<C> place;
  StagePlace<C> landed;  // the oldest stage that may still be in flight
  int in_flight = 0;
  for (int s = 0; s < chain.count; ++s) {
    const StreamParams& p = chain.steps[s].p;
    const ChainShare share(p.units);
    int32_t tile = share.begin / p.k_units;
    int32_t k = share.begin - tile * p.k_units;
    for (int32_t unit = share.begin; unit < share.end; ++unit) {
      BarrierWait(shared.EmptyWeight(place.stage), place.parity ^ 1);
      if (in_flight == ChainShared<C>::kInFlight) {
        BarrierWait(shared.FullWeight(landed.stage), landed.parity);
        landed.Advance();
      } else {
        ++in_flight;
      }
      BarrierExpect(shared.FullWeight(place.stage), C::kWeightBytes);
      LoadWeights<C>(shared.Weight(place.stage), shared.FullWeight(place.stage), tile, k, p,
                     &chain.steps[s].weight, once);
      if (++k == p.k_units) {
        k = 0;
        ++tile;
      }
      place.Advance();
    }
  }
}

template <class C>
__device__ __forceinline__ void BringInputs(const ChainShared<C>& shared,
                                            const ChainParams& chain) {
  const uint64_t again = EvictLastPolicy();
  WaitForPreviousKernel();
  InputPlace<C> place;
  for (int s = 0; s < chain.count; ++s) {
    const StreamParams& p = chain.steps[s].p;
    const ChainShare share(p.units);
    if (s > 0 && share.begin < share.end) {
      AwaitCounter(chain.counters + s - 1, chain.steps[s].input_ready);
      GlobalFenceProxyAsync();
    }
    for (int32_t unit = share.begin; unit < share.end; ++unit) {
      BarrierWait(shared.EmptyInput(place.stage), place.parity ^ 1);
      BarrierExpect(shared.FullInput(place.stage), C::kInputBytes);
      LoadInputUnit<C>(shared.Input(place.stage), shared.FullInput(place.stage), unit, p,
                       &chain.steps[s].input, again);
      place.Advance();
    }
  }
}

// Makes f16 of the first step's input, stage by stage, before the products; what follows is written that way.
template <class C>
__device__ __forceinline__ void ConvertInputs(const ChainShared<C>& shared,
                                              const ChainParams& chain, int thread) {
  InputPlace<C> place;
  const ChainShare share(chain.steps[0].p.units);
  for (int32_t unit = share.begin; unit < share.end; ++unit) {
    BarrierWait(shared.FullInput(place.stage), place.parity);
    ConvertInput<C, ChainShared<C>::kConverters>(shared.Input(place.stage), thread);
    FenceProxyAsync();
    __syncwarp();
    if (thread % 32 == 0) BarrierArrive(shared.Converted(place.stage));
    place.Advance();
  }
}

// All tokens at once, four a lane, so that one round trip to L2 brings everything. The sum's order depends on nothing but K.
template <class C>
__device__ __forceinline__ void BringNorms(const ChainShared<C>& shared, const ChainParams& chain,
                                           int lane) {
  WaitForPreviousKernel();
  int norms = 0;
  for (int s = 0; s < chain.count; ++s) {
    const ChainStepParams& step = chain.steps[s];
    if (step.input_squares == nullptr) continue;
    if (s > 0) {
      if (lane == 0) AwaitCounter(chain.counters + s - 1, step.input_ready);
      __syncwarp();
    }
    const StreamParams& before = chain.steps[s - 1].p;
    const int32_t tiles = before.units / before.k_units;
    constexpr int kQuads = C::kTokens / 4;
    float sums[4] = {};
#pragma unroll 16
    for (int32_t tile = lane / kQuads; tile < tiles; tile += 32 / kQuads) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(step.input_squares) + tile * kQuads +
                              lane % kQuads);
      sums[0] += v.x;
      sums[1] += v.y;
      sums[2] += v.z;
      sums[3] += v.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int offset = 16; offset >= kQuads; offset /= 2) {
        sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], offset);
      }
      if (lane < kQuads) {
        StoreShared(shared.Norm(norms, lane * 4 + i),
                    rsqrtf(sums[i] / static_cast<float>(before.n) + step.epsilon));
      }
    }
    BarrierArrive(shared.NormReady());  // of each lane
    ++norms;
  }
}

// ---- consumers ----

// Multiplies this warpgroup's of `count` units of a tile: every kSplits-th from number `turn` on. The first of the tile is number
// k_begin along K; `first`: of the chain's first step.
template <class C>
__device__ __forceinline__ void MultiplyUnits(const ChainShared<C>& shared, const StreamParams& p,
                                              int32_t row0, int32_t k_begin, int32_t count,
                                              int32_t turn, bool first, ChainPlace<C>& place,
                                              float (&sums)[C::kTiles][C::kSums]) {
  const int group = threadIdx.x % C::kRowThreads / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < C::kSums; ++j) sums[i][j] = 0.0f;
  }
  const auto release = [&](const ChainPlace<C>& of) {
    if (!C::kNvfp4 && lane != 0) return;
    BarrierArrive(shared.EmptyWeight(of.weight.stage));
    if constexpr (!ChainPlace<C>::kOneRing) BarrierArrive(shared.EmptyInput(of.input().stage));
  };
  ChainPlace<C> previous;
  previous.weight.stage = -1;
  const auto release_previous = [&] {
    if (previous.weight.stage >= 0) release(previous);
  };
  for (int32_t k = k_begin + turn; k < k_begin + count; k += C::kSplits) {
    const int stage = place.weight.stage;
    const int input_stage = place.input().stage;
    const uint32_t weight = shared.Weight(stage);
    const uint32_t input = shared.Input(input_stage);
    BarrierWait(shared.FullWeight(stage), place.weight.parity);
    BarrierWait(C::kF16 && first ? shared.Converted(input_stage) : shared.FullInput(input_stage),
                place.input().parity);
    if constexpr (C::kPromote) {
      float stage_sums[C::kTiles][C::kSums];
      MultiplyWidened<C, C::kF16>(weight, input, group, warp, lane, stage_sums, [] {});
      WgmmaWait<0>();
      release(place);
      AddStage<C>(p, row0 + warp * 16, k, stage_sums, sums);
    } else {
      if constexpr (C::kFormat == StreamFormat::kBf16) {
        MultiplyShared<C>(weight, input, group, sums);
        WgmmaWait<1>();
        release_previous();
      } else {
        MultiplyWidened<C, C::kF16>(weight, input, group, warp, lane, sums, release_previous);
      }
      previous = place;
    }
    place.Advance();
  }
  if constexpr (!C::kPromote) {
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

template <class C>
__device__ __forceinline__ void ConsumeChain(const ChainShared<C>& shared,
                                             const ChainParams& chain) {
  const int group = threadIdx.x % C::kRowThreads / 128;
  const int split = threadIdx.x / C::kRowThreads;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  ChainPlace<C> place;
  place.weight.stage = split;
  place.own_input.stage = split;
  int32_t turn = split;  // units of the CTA until this warpgroup's next
  int32_t tiles = 0;     // that the CTA has had a part in
  int norms = 0;
  int summed = 0;  // tiles with sums of squares
  constexpr bool kOldEarly = C::kTokens <= 16 && C::kConsumers <= 256;  // where there are registers
  float sums[C::kTiles][C::kSums];
  WaitForPreviousKernel();
  for (int s = 0; s < chain.count; ++s) {
    const ChainStepParams& step = chain.steps[s];
    const StreamParams& p = step.p;
    const ChainShare share(p.units);
    uint32_t finished = 0;  // tiles, by this warp
    for (int32_t unit = share.begin; unit < share.end;) {
      const int32_t tile = unit / p.k_units;
      const int32_t k_begin = unit - tile * p.k_units;
      const int32_t count = min(p.k_units - k_begin, share.end - unit);
      const int32_t row0 = tile * C::kRows + group * C::kTiles * 64;
      TileRows<C> rows[C::kTiles];
#pragma unroll
      for (int i = 0; i < C::kTiles; ++i) {
        rows[i].Load(step, row0 + i * 64 + warp * 16 + lane / 4,
                     k_begin == 0 && SplitJoin<C>::GoesOn(tiles), s + 1 == chain.count);
      }
      // What is added to is complete when the input is there: the steps before are.
      const bool old_early = kOldEarly && turn < count;
      if (old_early) {
        BarrierWait(shared.FullInput(place.input().stage), place.input().parity);
#pragma unroll
        for (int i = 0; i < C::kTiles; ++i) rows[i].LoadOld(p, lane);
      }
      MultiplyUnits<C>(shared, p, row0, k_begin, count, turn, s == 0, place, sums);
      turn = ((turn - count) % C::kSplits + C::kSplits) % C::kSplits;
      unit += count;
      if (!shared.Join().Add(tiles++, sums)) continue;
      if (k_begin > 0) {
        WritePart<C>(chain.parts, sums);
        continue;
      }
      if (!old_early) {
#pragma unroll
        for (int i = 0; i < C::kTiles; ++i) rows[i].LoadOld(p, lane);
      }
      if (count < p.k_units) {
        AddParts<C>(chain.parts, share.OwnerOf(tile * p.k_units + p.k_units - 1), sums);
      }
      if (step.input_squares != nullptr) BarrierWait(shared.NormReady(), norms & 1);
#pragma unroll
      for (int i = 0; i < C::kTiles; ++i) {
        const int group16 = (group * C::kTiles + i) * 4 + warp;
        rows[i].Store(shared, step, norms, row0 + i * 64 + warp * 16, lane,
                      shared.Squares(split, summed, group16), sums[i]);
      }
      if (step.gain != nullptr) StoreSquares(shared, step, tile, split, summed++);
      ++finished;
    }
    // Once for all tiles of the step: the next one needs them all, and a release takes until all that was written has arrived.
    if (finished > 0 && s + 1 < chain.count) {
      GlobalFenceProxyAsync();
      __syncwarp();
      if (lane == 0) ReleaseAdd(chain.counters + s, finished);
    }
    // Those that finish no tile have to see each norm too: the barrier tells two phases apart, no more.
    if (step.input_squares != nullptr) BarrierWait(shared.NormReady(), norms++ & 1);
  }
}

// The last CTA to end leaves the counters as it found them.
__device__ __forceinline__ void EndChain(const ChainParams& chain) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint32_t* const ended = chain.counters + kMaxChainSteps;
  if (AtomicIncrement(ended) != gridDim.x - 1) return;
  for (int s = 0; s <= kMaxChainSteps; ++s) chain.counters[s] = 0;
}

template <class C>
__global__ void __launch_bounds__(ChainShared<C>::kThreads, 1)
    ChainKernel(const __grid_constant__ ChainParams chain) {
  extern __shared__ uint8_t memory[];
  const ChainShared<C> shared{(SharedAddress(memory) + 1023) & ~1023u};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      BarrierInit(shared.FullWeight(s), 1);
      BarrierInit(shared.EmptyWeight(s), C::kReleases);
    }
    for (int s = 0; s < C::kInputStages; ++s) {
      BarrierInit(shared.FullInput(s), 1);
      if constexpr (!ChainShared<C>::kOneRing) {
        BarrierInit(shared.EmptyInput(s), C::kReleases);
      }
    }
    if constexpr (C::kF16) {
      for (int s = 0; s < C::kInputStages; ++s) {
        BarrierInit(shared.Converted(s), ChainShared<C>::kConverters / 32);
      }
    }
    shared.Join().Init();
    BarrierInit(shared.NormReady(), 32);
    BarrierInitFence();
  }
  __syncthreads();
  AllowNextKernel();
  const int role = static_cast<int>(threadIdx.x) - C::kConsumers;
  if (role < 0) {
    ConsumeChain(shared, chain);
  } else if (role < 32) {
    if (role == 0) BringWeights(shared, chain);
  } else if (role < 64) {
    if (role == 32) BringInputs(shared, chain);
  } else {
    if constexpr (C::kF16) ConvertInputs(shared, chain, role - 64);
    if (role < 96) BringNorms(shared, chain, role - 64);
  }
  __syncwarp();
  EndChain(chain);
}

// What the host has to know of an instance.
template <class C>
StreamKernel DescribeChainKernel() {
  StreamKernel kernel;
  kernel.function = reinterpret_cast<const void*>(&ChainKernel<C>);
  kernel.format = C::kFormat;
  kernel.tokens = C::kTokens;
  kernel.rows = C::kRows;
  kernel.stage_k = C::kStageK;
  kernel.stages = C::kStages;
  kernel.stage_bytes = C::kStageBytes;
  kernel.weight_box_k = C::kNvfp4 ? 0 : C::kWeightBoxK;
  kernel.input_box_k = C::kInputBoxK;
  kernel.shared_bytes = ChainShared<C>::kBytes;
  kernel.threads = ChainShared<C>::kThreads;
  return kernel;
}

}  // namespace aisp::cuda
