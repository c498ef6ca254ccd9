// The kernel for a few tokens, two to eight: consecutive layers in one launch, structured like the
// kernel for one (one_token.cuh).
//
// A CTA owns whole rows: tiles of 16, along all of K, so no sum is shared between CTAs. Its warps
// have one job each: - The weight warp fills stages as soon as they are free, through all steps,
// and waits for no data. - Eight warps multiply. Each has its own part of K, the same block of
// every stage, and holds the tokens' values of it in registers, as fragments of its products
// (few_tokens_input.cuh). - The finishing warp adds the warps' sums of a tile, scales, adds bias or
// residual, stores and publishes (few_tokens_finish.cuh). - The last warp empties the other set of
// slots and lets the next kernel start.
//
// Registers hold 4,096 of K for eight tokens. A longer K is multiplied in slices, by a few tiles
// together, whose sums wait in shared memory. A layer's tiles are distributed round-robin over the
// CTAs, so that the input of the next layer's first slice exists long before the last tile.
//
// There are no counters or fences between CTAs. A layer publishes its outputs in slots, which hold
// an empty marker before, in the order in which the next layer's lanes multiply them, and these
// poll the slots. Outputs before a norm are published times the norm's gain, along with sums of
// squares, from which the finishing warps compute 1 / rms for the next layer's sums.
//
// There are two sets of slots, used alternately: a launch resets the other one before it lets its
// successor start (token_slots.h; launches of this kernel are counted separately).
//
// Deadlock: as in one_token.cuh and chain.cuh, one such launch at a time per device.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/few_tokens_config.cuh"
#include "kernels/cuda/linear/few_tokens_finish.cuh"
#include "kernels/cuda/linear/few_tokens_input.cuh"
#include "kernels/cuda/linear/one_token_multiply.cuh"
#include "kernels/cuda/linear/ptx.cuh"

namespace aisp::cuda {

// ---- the weight warp ----

template <class C>
__device__ __forceinline__ void BringFewTokensWeights(const FewTokensShared<C>& shared,
                                                      const FewTokensParams& p) {
  const uint64_t once = EvictFirstPolicy();
  FewTokensCursor<C::kRing> cursor;
  FewTokensCursor<C::kRing> landed;  // the oldest stage that may still be in flight
  int in_flight = 0;
  for (int s = 0; s < p.count; ++s) {
    const FewTokensStep& step = p.steps[s];
    const FewTokensShare share(step);
    // Stages that are probably requested before the previous step has ended.
    int32_t early = s > 0 ? C::kRing : 0;
    ForTilesAndSlices<C>(step, share.count, [&](int32_t i, int32_t, int32_t first) {
      const int32_t tile = share.Tile(i);
      const int32_t end = min(first + C::kSliceStages, step.stages);
      for (int32_t k = first; k < end; ++k) {
        const int limit = --early >= 0 ? C::kInFlightEarly : C::kInFlight;
        BarrierWait(shared.Empty(cursor.at), cursor.parity ^ 1);
        for (; in_flight >= limit; --in_flight) {
          BarrierWait(shared.Full(landed.at), landed.parity);
          landed.Advance();
        }
        const uint32_t full = shared.Full(cursor.at);
        BarrierExpect(full, C::kStageBytes);
        TensorLoad3(shared.Stage(cursor.at), &step.weight, 0, tile * kTokenRows, k * C::kWarps,
                    full, once);
        ++in_flight;
        cursor.Advance();
      }
    });
  }
}

// ---- the warps that multiply ----

// A warp's block of a stage: 16 rows times kBlockK, with the tokens' vectors for it.
template <class C, class Release>
__device__ __forceinline__ void MultiplyBlock(uint32_t block, const uint4* tokens, int lane,
                                              const Release& release, TokenSums& sums) {
  TokenLines lines;
  lines.Load<0>(block, 0, lane);
  if constexpr (C::kF16) {
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        WidenFp8ToF16(lines.q[i][2 * h], a[h][0], a[h][2]);
        WidenFp8ToF16(lines.q[i][2 * h + 1], a[h][1], a[h][3]);
      }
      TokenMma<true>(sums.v[0], a[0], tokens[i].x, tokens[i].y);
      TokenMma<true>(sums.v[1], a[1], tokens[i].z, tokens[i].w);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      TokenMma<false>(sums.v[0], lines.q[i], tokens[i / 2].x, tokens[i / 2].y);
      TokenMma<false>(sums.v[1], lines.q[i + 1], tokens[i / 2].z, tokens[i / 2].w);
    }
  }
  release(lines.Loaded());
}

template <class C>
struct FewTokensWorker {
  const FewTokensShared<C>& shared;
  const FewTokensParams& p;
  const uint32_t* set;
  int warp;
  int lane;
  FewTokensCursor<C::kRing> cursor;
  FewTokensCursor<C::kSlots> slot;
  FewTokensInput<C> input;

  __device__ __forceinline__ void Work() {
    WaitForPreviousKernel();
    for (int s = 0; s < p.count; ++s) {
      const FewTokensStep& step = p.steps[s];
      const FewTokensShare share(step);
      bool asked = false;  // whether this slice's input was requested
      ForTilesAndSlices<C>(step, share.count, [&](int32_t i, int32_t group, int32_t first) {
        const bool one_slice = step.stages <= C::kSliceStages;
        if (one_slice ? i == 0 : i == group) Fetch(s, first, asked);
        // After a slice's last tile its vectors are no longer needed: each register is reloaded
        // with the next slice's vector as soon as it has been multiplied.
        const int32_t next = first + C::kSliceStages;
        asked = C::kAsksAhead && s > 0 && next < step.stages &&
                i + 1 == min(group + C::kGroupTiles, share.count);
        const FewTokensVectors<C> behind(step, set, asked ? p.rows : 0, next, warp, lane);
        MultiplySlice(step, first, i - group, asked, behind);
      });
    }
  }

 private:
  __device__ __forceinline__ void Fetch(int s, int32_t first, bool asked) {
    const FewTokensStep& step = p.steps[s];
    if (s == 0) {
      FetchRows<C>(step, p.x, p.rows, first, warp, lane, input);
    } else if (C::kAsksAhead && asked) {
      FewTokensVectors<C>(step, set, p.rows, first, warp, lane).Await(step.poll, input);
    } else {
      FetchSlots<C>(step, set, p.rows, first, warp, lane, input);
    }
  }

  // One tile, one slice of K. `parked`: where the tile's sums wait between slices. `ask`: also
  // loads the vectors of slice `behind` into these registers.
  __device__ __forceinline__ void MultiplySlice(const FewTokensStep& step, int32_t first,
                                                int32_t parked, bool ask,
                                                const FewTokensVectors<C>& behind) {
    TokenSums sums;
    if (first > 0) {
      const uint4 before = LoadShared16(shared.Parked(parked, warp, lane));
      sums.v[0][0] = __uint_as_float(before.x);
      sums.v[0][1] = __uint_as_float(before.y);
      sums.v[0][2] = __uint_as_float(before.z);
      sums.v[0][3] = __uint_as_float(before.w);
    }
    const int32_t left = step.stages - first;
#pragma unroll
    for (int k = 0; k < C::kSliceStages; ++k) {
      if (k >= left) break;
      BarrierWait(shared.Full(cursor.at), cursor.parity);
      const auto release = [&](uint32_t loaded) {
        __syncwarp();
        if (lane == 0) BarrierArriveBehind(shared.Empty(cursor.at), loaded);
      };
      MultiplyBlock<C>(shared.Block(cursor.at, warp), input.v + k * C::kVectorsPerStage, lane,
                       release, sums);
      if constexpr (C::kAsksAhead) {
#pragma unroll
        for (int v = 0; v < C::kVectorsPerStage; ++v) {
          if (ask) behind.Ask(k * C::kVectorsPerStage + v, input);
        }
      }
      cursor.Advance();
    }
    const float4 all = make_float4(sums.v[0][0] + sums.v[1][0], sums.v[0][1] + sums.v[1][1],
                                   sums.v[0][2] + sums.v[1][2], sums.v[0][3] + sums.v[1][3]);
    if (left > C::kSliceStages) {
      StoreShared16(shared.Parked(parked, warp, lane), all);
      return;
    }
    BarrierWait(shared.Taken(slot.at), slot.parity ^ 1);
    StoreShared16(shared.Sums(slot.at, warp, lane), all);
    BarrierArrive(shared.Summed(slot.at));  // by each lane
    slot.Advance();
  }
};

// ---- the finishing warp ----

template <class C>
__device__ __forceinline__ void TakeSums(const FewTokensShared<C>& shared, int slot, int lane,
                                         float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = 0.0f;
#pragma unroll
  for (int w = 0; w < C::kWarps; ++w) {
    const uint4 part = LoadShared16(shared.Sums(slot, w, lane));
    v[0] += __uint_as_float(part.x);
    v[1] += __uint_as_float(part.y);
    v[2] += __uint_as_float(part.z);
    v[3] += __uint_as_float(part.w);
  }
}

template <class C>
__device__ __forceinline__ void FinishFewTokens(const FewTokensShared<C>& shared,
                                                const FewTokensParams& p, uint32_t* set, int lane) {
  FewTokensCursor<C::kSlots> slot;
  PrefetchRows<C>(p, lane);
  WaitForPreviousKernel();
  for (int s = 0; s < p.count; ++s) {
    const FewTokensStep& step = p.steps[s];
    const FewTokensShare share(step);
    const bool last = s + 1 == p.count;
    if (s == 1 && share.count == 0) BarrierArrive(shared.Begun());
    if (share.count == 0) continue;
    FewTokensNext next;
    const float* gain = nullptr;
    if (!last) {
      const FewTokensStep& behind = p.steps[s + 1];
      next.words = set + behind.input_at;
      gain = behind.gain;
      if (gain != nullptr) next.squares = next.words + behind.k / 32 * 128;
    }
    float2 norm = make_float2(1.0f, 1.0f);
    float kept[2] = {};
    FewTokensRows rows = LoadRows<C>(step, gain, p.rows, share.Tile(0), lane);
    if (step.gain != nullptr) {
      norm = AwaitNorms(step, set + step.input_at + step.k / 32 * 128, lane);
    }
    for (int32_t i = 0; i < share.count; ++i) {
      FewTokensRows ahead = rows;
      if (i + 1 < share.count) ahead = LoadRows<C>(step, gain, p.rows, share.Tile(i + 1), lane);
      BarrierWait(shared.Summed(slot.at), slot.parity);
      float v[4];
      TakeSums(shared, slot.at, lane, v);
      BarrierArriveBehind(shared.Taken(slot.at), __float_as_uint(v[0]));  // by each lane
      slot.Advance();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float scale = C::kF16 ? rows.scale[j / 2] * kF16Divisor : 1.0f;
        v[j] = v[j] * (scale * (j % 2 == 0 ? norm.x : norm.y)) + rows.bias[j / 2];
      }
      StoreTile<C>(step, next, rows, p.rows, share.Tile(i), lane, v, kept);
      rows = ahead;
      if (s == 1 && i == 0) BarrierArrive(shared.Begun());
    }
  }
}

template <class C>
__global__ void __maxnreg__(C::kRegisters)
    FewTokensChain(const __grid_constant__ FewTokensParams p) {
  extern __shared__ uint8_t memory[];
  const FewTokensShared<C> shared{(SharedAddress(memory) + 1023) & ~1023u};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kRing; ++s) {
      BarrierInit(shared.Full(s), 1);
      BarrierInit(shared.Empty(s), C::kWarps);
    }
    for (int s = 0; s < C::kSlots; ++s) {
      BarrierInit(shared.Summed(s), C::kWarps * 32);
      BarrierInit(shared.Taken(s), 32);
    }
    BarrierInit(shared.Begun(), 32);
    BarrierInitFence();
  }
  // Number of earlier launches; read before the barrier after which the last warp may increment it.
  const uint32_t launches = LoadRelaxed32(p.launches + blockIdx.x);
  __syncthreads();
  uint32_t* const set = p.sets + launches % 2 * kFewTokensSetSlots;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (warp < C::kWarps) {
    FewTokensWorker<C> worker{shared, p, set, warp, lane, {}, {}, {}};
    worker.Work();
  } else if (warp == C::kWarps) {
    if (lane == 0) BringFewTokensWeights(shared, p);
  } else if (warp == C::kWarps + 1) {
    FinishFewTokens(shared, p, set, lane);
  } else {
    WaitForPreviousKernel();
    BarrierWait(shared.Begun(), 0);
    LetNextStart(p, launches, lane);
  }
}

}  // namespace aisp::cuda
