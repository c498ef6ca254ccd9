// The kernel for several layers in one launch, for few rows. All weights stream through a ring of
// stages without a pause while a layer's sums are reduced and become the next one's input.
//
// Every CTA processes its share of each step's units as in stream_linear.cuh. Its warps have one
// job each (the norm warp may have two) and synchronise only through barriers in shared memory: -
// The weight warp fills stages as soon as they are free, through all steps, and waits for no data.
// - The input warp waits until a step's input is complete (a counter in global memory), then loads
// its part of each stage. - With FP8 weights, the norm warp and another convert the first step's
// input to f16 (f16_input.h). - The norm warp turns the previous step's sums of squares into 1 /
// rms, for steps with a norm in front. - The consumers multiply. A tile that several CTAs share is
// finished by those for which it is the last tile of the step; they divide its tokens, eight at a
// time. All CTAs publish the sums that others finish in slots, which hold an empty marker before.
// The finisher polls the slots, adds the sums in CTA order and resets the slots to the marker.
//
// A norm in front has no pass of its own: whoever completes a tile of the residual stream writes h
// * gain in bf16 (f16 for FP8 weights), and the layer's outputs are multiplied by 1 / rms at its
// end.
//
// Between steps the ring fills, and two more units are prefetched into L2 where that was measured
// to help; more would delay what the step waits for.
//
// Loads in flight: the weight warp requests 64 KiB at a time (48 if blocks have scales), not the
// whole ring. That keeps memory busy. Requesting every CTA's ring would make a queue of 4 us, in
// which sums, counters and inputs wait too, and in which about 25 multiprocessors are served 20 %
// faster than the rest. Without the queue all are served alike, so equal shares are right. While
// the ring fills between steps it is 32 KiB, where that was measured to help: the sums and inputs
// for which all wait come sooner then.
//
// Rings: while a step's sums are reduced, loading continues until the weights' stages are full;
// inputs come from L2 and need few stages. Where that was measured to be faster, weights have a
// ring of their own with all remaining shared memory; elsewhere both share a ring.
//
// Memory order: consumers write, fence towards the copy engine and release the counter, per warp
// and once per step (a release waits for all of the warp's writes, 2 us under load). The input warp
// acquires the counter, fences, and lets the copy engine read. Everything later in the chain is
// ordered after that, so a step's buffers may be rewritten two steps later, and parts one step
// later.
//
// Adapters (AdaptedStepParams): a layer with LoRA adapters has a step for v = x down^T, then one
// for itself, whose last units of K are those of v and up. Only these wait for v, so the layer
// begins before the step of v has ended, and the two steps alternate between two sets of parts.
//
// Deadlock: CTAs wait for each other, so all must be resident at once. The grid has at most one CTA
// per multiprocessor, and one fits beside any small kernel. Earlier kernels end without this one,
// and later kernels start only once every CTA of this one runs. But two chains in two streams could
// take half of the device each, so all chains of a device must use one stream.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/chain_bring.cuh"
#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/chain_tile.cuh"
#include "kernels/cuda/linear/multiply.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/wgmma.cuh"

namespace aisp::cuda {

// ---- consumers ----

// Multiplies this warpgroup's rows of `count` units of a tile, for operands that are both read from
// shared memory or whose sums are promoted. k_begin: the first unit's number along K; `first`: the
// chain's first step.
template <class C>
__device__ __forceinline__ void MultiplyUnits(const ChainShared<C>& shared, const StreamParams& p,
                                              int32_t row0, int32_t k_begin, int32_t count,
                                              bool first, ChainCursor<C>& cursor,
                                              float (&sums)[C::kTiles][C::kSums]) {
  const int group = threadIdx.x / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  ChainCursor<C> previous;
  for (int32_t k = k_begin; k < k_begin + count; ++k) {
    const uint32_t weight = shared.Weight(cursor.weight.stage);
    const uint32_t input = shared.Input(cursor.input().stage);
    shared.AwaitUnit(cursor, first);
    if constexpr (C::kPromote) {
      float stage_sums[C::kTiles][C::kSums];
      MultiplyWidened<C, C::kF16>(weight, input, group, warp, lane, stage_sums, [] {});
      WgmmaWait<0>();
      shared.Release(cursor, lane);
      AddStage<C>(p, row0 + warp * 16, k, stage_sums, sums);
    } else {
      MultiplyShared<C>(weight, input, group, sums);
      WgmmaWait<1>();
      if (k > k_begin) shared.Release(previous, lane);
      previous = cursor;
    }
    cursor.Advance();
  }
  if constexpr (!C::kPromote) {
    WgmmaWait<0>();
    shared.Release(previous, lane);
  }
}

// The same for weights that are converted in registers, 64 of K at a time. There is no pause
// between units: while the last products of one are in flight, the next one is awaited and its
// first weights are loaded.
template <class C>
__device__ __forceinline__ void WidenAndMultiplyUnits(const ChainShared<C>& shared, int32_t count,
                                                      bool first, ChainCursor<C>& cursor,
                                                      float (&sums)[C::kTiles][C::kSums]) {
  using Product = Wgmma<C::kTokens>;
  using Raw = std::conditional_t<C::kNvfp4, RawNvfp4, RawFp8>;
  constexpr int kChunks = C::kStageK / 64;
  static_assert(kChunks % 2 == 0);
  const int group = threadIdx.x / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  Raw raw[2];
  uint32_t a[2][4][4];
  const auto begin_unit = [&] {
    shared.AwaitUnit(cursor, first);
    LoadRaw<C>(shared.Weight(cursor.weight.stage), group, 0, warp, lane, raw[0]);
  };
  begin_unit();
  ChainCursor<C> previous;
  previous.weight.stage = -1;
  for (int32_t left = count; left > 0; --left) {
    const uint32_t weight = shared.Weight(cursor.weight.stage);
    const uint64_t tokens = SwizzledDescriptor(Uniform(shared.Input(cursor.input().stage)), 0);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (c + 1 < kChunks) LoadRaw<C>(weight, group, c + 1, warp, lane, raw[(c + 1) % 2]);
      WgmmaWait<1>();
      if (c == 1 && previous.weight.stage >= 0) shared.Release(previous, lane);
      Widen<C::kF16>(raw[c % 2], a[c % 2]);
      WgmmaFence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const uint64_t b = Moved(tokens, c * C::kTokens * 128 + k * 32);
        if constexpr (C::kF16) {
          Product::F16(sums[0], a[c % 2][k], b, 1);
        } else {
          Product::Bf16(sums[0], a[c % 2][k], b, 1);
        }
      }
      WgmmaCommit();
    }
    previous = cursor;
    cursor.Advance();
    if (left > 1) begin_unit();
  }
  WgmmaWait<0>();
  shared.Release(previous, lane);
}

// The sums of this CTA's units of a tile.
template <class C>
__device__ __forceinline__ void SumUnits(const ChainShared<C>& shared, const StreamParams& p,
                                         int32_t row0, int32_t k_begin, int32_t count, bool first,
                                         ChainCursor<C>& cursor,
                                         float (&sums)[C::kTiles][C::kSums]) {
#pragma unroll
  for (int j = 0; j < C::kSums; ++j) sums[0][j] = 0.0f;
  if constexpr (C::kPromote || C::kFormat == StreamFormat::kBf16) {
    MultiplyUnits<C>(shared, p, row0, k_begin, count, first, cursor, sums);
  } else {
    WidenAndMultiplyUnits<C>(shared, count, first, cursor, sums);
  }
  // Keeps reads of the sums after the wait, which names no register.
#pragma unroll
  for (int j = 0; j < C::kSums; ++j) asm volatile("" : "+f"(sums[0][j]));
}

// Stores this CTA's quads of a tile (every finishers-th) and returns their number. `complete`:
// there are no other parts to add. One quad at a time, since the data of all would fit neither
// registers nor L1.
template <class C, class Step>
__device__ __forceinline__ uint32_t FinishQuads(const ChainShared<C>& shared, float* all_parts,
                                                const Step& step, const TileRows<C>& rows,
                                                const TileCtas& ctas, int32_t tile, bool complete,
                                                int norms, int& summed,
                                                const float (&sums)[C::kSums]) {
  constexpr int kQuads = C::kSums / 4;
  const int32_t first = static_cast<int32_t>(blockIdx.x) - ctas.first;
  const int lane = threadIdx.x % 32;
  const int group16 = threadIdx.x / 32;
  const int32_t group_row = tile * C::kRows + group16 * 16;
  uint32_t finished = 0;
  QuadParts<C, std::is_same_v<Step, AdaptedStepParams> ? 8 : 6> parts;
  if (!complete && first < kQuads) parts.Ask(all_parts, ctas, first);
#pragma unroll 1
  for (int32_t quad = first; quad < kQuads; quad += ctas.finishers) {
    float own[4] = {sums[0], sums[1], sums[2], sums[3]};
#pragma unroll
    for (int q = 1; q < kQuads; ++q) {
#pragma unroll
      for (int i = 0; i < 4; ++i) own[i] = q == quad ? sums[4 * q + i] : own[i];
    }
    float old[4];
    rows.LoadOld(step.p, quad, lane, old);
    if (!complete) {
      const int32_t next = quad + ctas.finishers;
      parts.AddTo(all_parts, ctas, quad, step.p.poll, own);
      if (next < kQuads) parts.Ask(all_parts, ctas, next);
    }
    if (step.p.store == Store::kAccumulateF32 || step.p.store == Store::kF32) {
      rows.Store32(shared, step, norms, quad, lane, shared.Squares(summed, group16), old, own);
      if (step.gain != nullptr) StoreSquares(shared, step, tile, quad * 8, summed++);
    } else {
      rows.Store16(shared, step, norms, group_row, quad, lane, own);
    }
    ++finished;
  }
  return finished;
}

// Finishes this CTA's portion of a tile and publishes the rest of its sums for the other finishers.
// `last`: this CTA's last tile of the step. Returns the number of finished quads.
template <class C, class Step>
__device__ __forceinline__ uint32_t FinishTile(const ChainShared<C>& shared, float* parts,
                                               const Step& step, const TileRows<C>& rows,
                                               const TileCtas& ctas, int32_t tile, bool last,
                                               int norms, int& summed, float (&sums)[C::kSums]) {
  constexpr int kQuads = C::kSums / 4;
  const auto cta = static_cast<int32_t>(blockIdx.x);
  const bool alone = ctas.finishers == 1 && ctas.first == cta;
  if (alone) {
    AddAllParts<C>(parts, ctas, step.p.poll, sums);
  } else {
    WritePart<C>(parts, ctas, last ? cta - ctas.first : -1, sums);
    if (!last) return 0;
  }
  if (step.input_squares != nullptr) BarrierWait(shared.NormReady(), norms & 1);
  if (alone && (step.p.store == Store::kSiluMulBf16 || step.p.store == Store::kBf16)) {
    const int32_t group_row = tile * C::kRows + static_cast<int32_t>(threadIdx.x) / 32 * 16;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      rows.Store16(shared, step, norms, group_row, q, threadIdx.x % 32, sums + 4 * q);
    }
    return kQuads;
  }
  return FinishQuads<C>(shared, parts, step, rows, ctas, tile, alone, norms, summed, sums);
}

// Where the CTAs of a step publish sums. A layer with adapters begins before its adapters' sums
// have ended, so steps alternate.
template <class Chain>
__device__ __forceinline__ float* PartsOf(const Chain& chain, int s) {
  if constexpr (Chain::kAdapted) {
    return chain.parts + s % 2 * chain.parts_of_step;
  } else {
    return chain.parts;
  }
}

template <class C, class Chain>
__device__ __forceinline__ void ConsumeChain(const ChainShared<C>& shared, const Chain& chain) {
  const int lane = threadIdx.x % 32;
  ChainCursor<C> cursor;
  int norms = 0;
  int summed = 0;  // tiles (or parts of them) with sums of squares
  float sums[C::kTiles][C::kSums];
  WaitForPreviousKernel();
  for (int s = 0; s < chain.count; ++s) {
    const auto& step = chain.steps[s];
    const StreamParams& p = step.p;
    const ChainShare share = ShareOf(chain.steps[s]);
    float* const parts = PartsOf(chain, s);
    uint32_t finished = 0;  // quads finished by this warp
    for (int32_t unit = share.begin; unit < share.end;) {
      const int32_t tile = unit / p.k_units;
      const int32_t k_begin = unit - tile * p.k_units;
      const int32_t count = min(p.k_units - k_begin, share.end - unit);
      const bool last = unit + count == share.end;
      const TileCtas ctas(share, tile, p.k_units, count == p.k_units);
      unit += count;
      TileRows<C> rows;
      rows.Load(step, tile * C::kRows + static_cast<int32_t>(threadIdx.x) / 32 * 16 + lane / 4,
                last || count == p.k_units, s + 1 == chain.count);
      SumUnits<C>(shared, p, tile * C::kRows + static_cast<int32_t>(threadIdx.x) / 128 * 64,
                  k_begin, count, s == 0, cursor, sums);
      finished +=
          FinishTile<C>(shared, parts, step, rows, ctas, tile, last, norms, summed, sums[0]);
    }
    // Once for all tiles of the step: the next step needs them all, and a release waits until all
    // writes have arrived.
    if (finished > 0 && s + 1 < chain.count) {
      GlobalFenceProxyAsync();
      __syncwarp();
      if (lane == 0) ReleaseAdd(chain.counters + s, finished);
    }
    // Warps that finish no tile must pass each norm too: the barrier distinguishes only two phases.
    if (step.input_squares != nullptr) BarrierWait(shared.NormReady(), norms++ & 1);
  }
}

// The last CTA to end resets the counters.
template <class Chain>
__device__ __forceinline__ void EndChain(const Chain& chain) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  uint32_t* const ended = chain.counters + Chain::kMostSteps;
  if (AtomicIncrement(ended) != gridDim.x - 1) return;
  for (int s = 0; s <= Chain::kMostSteps; ++s) chain.counters[s] = 0;
}

template <class C, class Chain>
__global__ void __launch_bounds__(ChainShared<C>::kThreads, 1)
    ChainKernel(const __grid_constant__ Chain chain) {
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
    BarrierInit(shared.NormReady(), 32);
    BarrierInitFence();
  }
  __syncthreads();
  AllowNextKernel();
  const int role = static_cast<int>(threadIdx.x) - C::kConsumers;
  if constexpr (ChainShared<C>::kMovesRegisters) {
    if (role < 0) {
      ptx::RegistersUp<ChainShared<C>::kConsumerRegisters>();
    } else {
      ptx::RegistersDown<ChainShared<C>::kOtherRegisters>();
    }
  }
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

// An instance's properties for the host.
template <class C, class Chain = ChainParams>
StreamKernel DescribeChainKernel() {
  StreamKernel kernel;
  kernel.function = reinterpret_cast<const void*>(&ChainKernel<C, Chain>);
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
