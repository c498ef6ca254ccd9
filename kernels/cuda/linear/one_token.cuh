// The kernel for one token: consecutive layers in one launch, whose weights stream through one ring
// of stages without a pause while one layer's outputs become the next one's input.
//
// A CTA owns whole rows: its share of a layer's tiles of 16, along all of K, so no sum is shared
// between CTAs. Its warps have one job each: - The weight warp fills stages as soon as they are
// free, through all steps, and waits for no data. - Eight warps multiply. Each has its own part of
// K: the same block of every stage. It loads that part of a step's input itself
// (one_token_input.cuh), uses it for all of the CTA's tiles, and stores its sums of a tile in
// shared memory. - The finishing warp adds the warps' sums of a row, scales, adds bias or residual,
// and stores.
//
// There are no counters or fences between CTAs. A layer publishes its outputs in slots, which hold
// an empty marker before; the consumer polls the slot itself. The residual is passed on in f32 and
// read completely by every CTA, which computes norm and rounding itself, so a norm needs no further
// synchronisation. From a layer's last product to the next one's first there is one store and one
// load through L2.
//
// The first layer's input may be published by the preceding attention, and the last layer's outputs
// for the following one: then no launch waits for the end of another. A slot is used once per
// launch. There are two sets: a launch uses one and resets the other, alternately (token_slots.h).
//
// Deadlock: in a launch of several steps CTAs wait for each other, so all must be resident at once;
// as in chain.cuh, only one such launch at a time per device. In a launch of a single layer no CTA
// waits for another; if it polls its input, it waits for attention, all of which has started
// before.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/linear/f16_input.h"
#include "kernels/cuda/linear/one_token_config.cuh"
#include "kernels/cuda/linear/one_token_input.cuh"
#include "kernels/cuda/linear/one_token_multiply.cuh"
#include "kernels/cuda/linear/ptx.cuh"

namespace aisp::cuda {

// Number of earlier launches with slots. Read before the barrier after which LetAttentionStart may
// increment it.
__device__ __forceinline__ uint32_t TokenLaunches(const OneTokenParams& p) {
  if (p.sets == nullptr) return 0;
  uint32_t launches;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
               : "=r"(launches)
               : "l"(p.launches + blockIdx.x)
               : "memory");
  return launches;
}

// ---- the weight warp ----

template <class C>
__device__ __forceinline__ void BringTokenStage(const OneTokenShared<C>& shared, int stage,
                                                const OneTokenStep& step, int32_t tile, int32_t k,
                                                uint64_t policy) {
  const uint32_t full = shared.Full(stage);
  BarrierExpect(full, C::kStageBytes);
  if constexpr (C::kNvfp4) {
    // In groups of 64 rows and chunks of 64 of K: a quarter of each.
    constexpr int kChunks = C::kStageK / 64;
    TensorLoad4(shared.Stage(stage), &step.weight, 0, tile % 4, k * kChunks, tile / 4, full,
                policy);
    TensorLoad4(shared.BlockScales(stage, 0), &step.block_scales, 0, tile % 4, k * kChunks,
                tile / 4, full, policy);
  } else {
    TensorLoad3(shared.Stage(stage), &step.weight, 0, tile * kTokenRows, k * C::kWarps, full,
                policy);
  }
}

template <class C>
__device__ __forceinline__ void BringTokenWeights(const OneTokenShared<C>& shared,
                                                  const OneTokenParams& p) {
  const uint64_t once = EvictFirstPolicy();
  TokenCursor cursor;
  TokenCursor landed;  // the oldest stage that may still be in flight
  int in_flight = 0;
  for (int s = 0; s < p.count; ++s) {
    const OneTokenStep& step = p.steps[s];
    const TokenShare share(step.tiles);
    int32_t early = p.ring;  // stages that are probably requested before the previous step has
                             // ended
    for (int32_t tile = share.begin; tile < share.end; ++tile) {
      for (int32_t k = 0; k < step.stages; ++k) {
        const int limit = --early >= 0 && s > 0 ? C::kInFlightEarly : C::kInFlight;
        BarrierWait(shared.Empty(cursor.at), cursor.parity ^ 1);
        for (; in_flight >= limit; --in_flight) {
          BarrierWait(shared.Full(landed.at), landed.parity);
          landed.Advance(p.ring);
        }
        BringTokenStage<C>(shared, cursor.at, step, tile, k, once);
        ++in_flight;
        cursor.Advance(p.ring);
      }
    }
  }
}

// ---- the warps that multiply ----

// Stores a warp's sums of a tile in shared memory.
template <class C>
__device__ __forceinline__ void LeaveSums(const OneTokenShared<C>& shared, const TokenCursor& slot,
                                          int warp, int lane, const TokenSums& sums) {
  // For rows g and g + 8.
  float top = sums.v[0][0];
  float bottom = sums.v[0][2];
  if constexpr (C::kNvfp4) {
    top += sums.v[0][1];
    bottom += sums.v[0][3];
  } else if constexpr (!C::kBlockScales) {
    top += sums.v[1][0];
    bottom += sums.v[1][2];
  }
  BarrierWait(shared.Taken(slot.at), slot.parity ^ 1);
  if constexpr (C::kNvfp4) {
    // Four lanes each have a part of a row. The finishing warp, which has time, adds them.
    StoreShared4(shared.Sum(slot.at, warp, 0) + lane * 4, __float_as_uint(top));
    StoreShared4(shared.Sum(slot.at, warp, 8) + lane * 4, __float_as_uint(bottom));
  } else if (lane % 4 == 0) {
    StoreShared4(shared.Sum(slot.at, warp, lane / 4), __float_as_uint(top));
    StoreShared4(shared.Sum(slot.at, warp, lane / 4 + 8), __float_as_uint(bottom));
  }
  __syncwarp();
  BarrierArrive(shared.Summed(slot.at));  // by each lane
}

template <class C>
__device__ __forceinline__ float2 LoadTokenBlockScales(const OneTokenStep& step, int32_t tile,
                                                       int32_t k_block) {
  const int32_t last = (step.n - 1) / 8;
  const int32_t column = min(k_block, step.scale_columns - 1);
  const float* const at = step.scales + column;
  return make_float2(
      __ldg(at + static_cast<int64_t>(min(2 * tile, last)) * step.scale_columns),
      __ldg(at + static_cast<int64_t>(min(2 * tile + 1, last)) * step.scale_columns));
}

// `leave` is called once, near the beginning; with NVFP4 while the first block is loaded.
template <class C, class Leave>
__device__ __forceinline__ void MultiplyTile(const OneTokenShared<C>& shared,
                                             const OneTokenStep& step, int32_t tile, int ring,
                                             uint32_t input, int warp, int lane,
                                             TokenCursor& cursor, const Leave& leave,
                                             TokenSums& sums) {
  if constexpr (!C::kNvfp4) leave();
  float2 scale = make_float2(1.0f, 1.0f);
  if constexpr (C::kBlockScales) scale = LoadTokenBlockScales<C>(step, tile, warp);
  for (int32_t k = 0; k < step.stages; ++k) {
    const uint32_t block = shared.Block(cursor.at, warp);
    const uint32_t token = input + k * (C::kBlockK * 2);
    const auto release = [&](uint32_t loaded_words) {
      __syncwarp();
      if (lane == 0) BarrierArriveBehind(shared.Empty(cursor.at), loaded_words);
    };
    BarrierWait(shared.Full(cursor.at), cursor.parity);
    if constexpr (C::kNvfp4) {
      const auto loaded = [&] {
        if (k == 0) leave();
      };
      MultiplyBlockNvfp4<C::kBlockK / 128>(block, shared.BlockScales(cursor.at, warp), token, lane,
                                           loaded, release, sums);
    } else if constexpr (C::kBlockScales) {
      TokenSums part;
      MultiplyBlockFp8(block, token, lane, release, part);
      AddScaledBlock(part, scale, sums);
      scale = LoadTokenBlockScales<C>(step, tile, (k + 1) * C::kWarps + warp);
    } else if constexpr (C::kF16) {
      MultiplyBlockFp8(block, token, lane, release, sums);
    } else {
      MultiplyBlockBf16(block, token, lane, release, sums);
    }
    cursor.Advance(ring);
  }
}

template <class C>
__device__ __forceinline__ void MultiplyToken(const OneTokenShared<C>& shared,
                                              const OneTokenParams& p, uint32_t launches, int warp,
                                              int lane) {
  const uint32_t input = shared.input + warp * p.input_bytes;
  TokenCursor cursor;
  TokenCursor slot;
  int norms = 0;
  const uint32_t* const set = p.sets + launches % 2 * kTokenSetSlots;
  if (!p.consumes) WaitForPreviousKernel();
  for (int s = 0; s < p.count; ++s) {
    const OneTokenStep& step = p.steps[s];
    const TokenShare share(step.tiles);
    if (share.begin == share.end) {
      if (step.gain != nullptr) ++norms;
      continue;
    }
    if (s == 0) {
      FetchToken<C>(step, p.consumes ? static_cast<const void*>(set + step.input_at) : p.x,
                    p.consumes, input, warp, lane);
    } else if (step.gain == nullptr) {
      FetchPairs<C>(step, set, input, warp, lane);
    } else {
      FetchResidual<C>(step, set, input, shared.Squares(norms++ % 2, warp, lane), warp, lane);
    }
    TokenSums before;  // of the previous tile, stored while this one's first block is loaded
    const auto leave = [&] {
      LeaveSums<C>(shared, slot, warp, lane, before);
      slot.Advance(C::kSlots);
    };
    for (int32_t tile = share.begin; tile < share.end; ++tile) {
      TokenSums sums;
      const auto leave_before = [&] {
        if (tile > share.begin) leave();
      };
      MultiplyTile<C>(shared, step, tile, p.ring, input, warp, lane, cursor, leave_before, sums);
      before = sums;
    }
    leave();
  }
}

// ---- the finishing warp: lane r has row r of a tile ----

// Values besides the sum for a row, prefetched.
struct TokenRow {
  int32_t row;
  bool has;
  float scale = 1.0f;
  float bias = 0.0f;
  float old = 0.0f;
};

template <class C>
__device__ __forceinline__ TokenRow LoadTokenRow(const OneTokenStep& step, int32_t tile, int lane) {
  TokenRow r;
  r.row = tile * kTokenRows + lane;
  r.has = lane < kTokenRows && r.row < step.n;
  if (!r.has) return r;
  if constexpr (C::kFormat != WeightFormat::kBf16 && !C::kBlockScales) {
    r.scale = __ldg(step.scales + r.row);
  }
  if constexpr (C::kF16) r.scale *= kF16Divisor;
  if (step.bias != nullptr) r.bias = __ldg(step.bias + r.row);
  // A row of y belongs to this lane in every accumulating step, so it reads its own stores.
  if (step.store == Store::kAccumulateF32)
    r.old = __ldcg(static_cast<const float*>(step.y) + r.row);
  return r;
}

// Two adjacent values as one word, as the next step multiplies them.
template <class C>
__device__ __forceinline__ uint32_t PackToken(float low, float high) {
  return RoundPair<C>(low * kInputFactor<C>, high * kInputFactor<C>);
}

// `next`: the slots that the next step reads or, for the last step, the following attention; else
// null. Only the last step stores y.
template <class C>
__device__ __forceinline__ void StoreToken16(void* y, uint32_t* next, bool last, int32_t i,
                                             bool has, float v) {
  const float below = __shfl_down_sync(0xffffffffu, v, 1);
  const bool has_below = __shfl_down_sync(0xffffffffu, has ? 1 : 0, 1) != 0;
  if (!has) return;
  if (next != nullptr && i % 2 == 0) {
    const float pair = has_below ? below : 0.0f;
    const __nv_bfloat162 out = __floats2bfloat162_rn(v, pair);
    StoreRelaxed(next + i / 2,
                 last ? reinterpret_cast<const uint32_t&>(out) : PackToken<C>(v, pair));
  }
  if (last) static_cast<__nv_bfloat16*>(y)[i] = __float2bfloat16(v);
}

template <class C>
__device__ __forceinline__ void StoreTokenRow(const OneTokenStep& step, uint32_t* next, bool last,
                                              const TokenRow& r, int32_t tile, int lane, float v) {
  if (step.store == Store::kSiluMulBf16) {
    // Rows 0 to 7 of a tile are gates, 8 to 15 ups.
    const float up = __shfl_down_sync(0xffffffffu, v, 8);
    const bool has = __shfl_down_sync(0xffffffffu, r.has ? 1 : 0, 8) != 0 && lane < 8;
    StoreToken16<C>(step.y, next, last, tile * 8 + lane, has, v / (1.0f + __expf(-v)) * up);
  } else if (step.store == Store::kBf16) {
    StoreToken16<C>(step.y, next, last, r.row, r.has, v);
  } else if (r.has) {
    static_cast<float*>(step.y)[r.row] = v + r.old;
    if (next != nullptr) StoreRelaxed(next + r.row, __float_as_uint(v + r.old));
  }
}

// Prefetches scales and biases of all this CTA's rows into L2, where otherwise each tile would wait
// for memory, and a part of the norms' gains, for which all CTAs would wait.
template <class C>
__device__ __forceinline__ void PrefetchTokenRows(const OneTokenParams& p, int lane) {
  constexpr int kLine = 32;  // floats
  for (int s = 0; s < p.count; ++s) {
    const OneTokenStep& step = p.steps[s];
    const TokenShare share(step.tiles);
    const int32_t end = min(share.end * kTokenRows, step.n);
    const int32_t gain = static_cast<int32_t>(blockIdx.x + lane * gridDim.x) * kLine;
    if (step.gain != nullptr && gain < step.k) PrefetchLine(step.gain + gain);
    for (int32_t row = share.begin * kTokenRows + lane * kLine; row < end; row += 32 * kLine) {
      if (step.bias != nullptr) PrefetchLine(step.bias + row);
      if constexpr (C::kFormat != WeightFormat::kBf16 && !C::kBlockScales) {
        PrefetchLine(step.scales + row);
      }
    }
    if constexpr (C::kBlockScales) {
      const int64_t first = int64_t{2} * share.begin * step.scale_columns;
      const int64_t last = static_cast<int64_t>((end + 7) / 8) * step.scale_columns;
      for (int64_t i = first + lane * kLine; i < last; i += 32 * kLine) {
        PrefetchLine(step.scales + i);
      }
    }
  }
}

// Before the last step: lets the next kernel start, which may be attention that polls the last
// step's slots. By then the previous kernel is complete, this launch is counted, the other set is
// empty, and all stores except the last step's outputs are visible everywhere.
__device__ __forceinline__ void LetAttentionStart(const OneTokenParams& p, uint32_t launches,
                                                  int lane) {
  WaitForPreviousKernel();
  auto* const other = reinterpret_cast<uint4*>(p.sets + (launches + 1) % 2 * kTokenSetSlots);
  for (int i = static_cast<int>(blockIdx.x) * 32 + lane; i < kTokenSetSlots / 4;
       i += static_cast<int>(gridDim.x) * 32) {
    other[i] = make_uint4(kTokenEmpty, kTokenEmpty, kTokenEmpty, kTokenEmpty);
  }
  if (lane == 0) p.launches[blockIdx.x] = launches + 1;
  __threadfence();
  __syncwarp();
  AllowNextKernel();
}

// Row r's sum in a slot, returned in lane r; called by the whole warp.
template <class C>
__device__ __forceinline__ float TakeSum(const OneTokenShared<C>& shared, int slot, int lane) {
  float sum = 0.0f;
  if constexpr (C::kNvfp4) {
    // Lanes 16 to 31 add the sums of the second half of the warps.
    constexpr int kHalf = C::kWarps / 2;
#pragma unroll
    for (int w = 0; w < kHalf; ++w) {
      const uint4 v = LoadShared16(shared.Sum(slot, lane / 16 * kHalf + w, lane % 16));
      sum += (__uint_as_float(v.x) + __uint_as_float(v.y)) +
             (__uint_as_float(v.z) + __uint_as_float(v.w));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 16);
  } else {
#pragma unroll
    for (int w = 0; w < C::kWarps; ++w) {
      sum += __uint_as_float(LoadShared4(shared.Sum(slot, w, lane % kTokenRows)));
    }
  }
  return sum;
}

template <class C>
__device__ __forceinline__ void FinishToken(const OneTokenShared<C>& shared,
                                            const OneTokenParams& p, uint32_t launches, int lane) {
  TokenCursor slot;
  int norms = 0;
  PrefetchTokenRows<C>(p, lane);
  if (!p.consumes) WaitForPreviousKernel();
  uint32_t* const set = p.sets + launches % 2 * kTokenSetSlots;
  for (int s = 0; s < p.count; ++s) {
    const OneTokenStep& step = p.steps[s];
    const TokenShare share(step.tiles);
    const bool last = s + 1 == p.count;
    uint32_t* const next = !last         ? set + p.steps[s + 1].input_at
                           : p.publishes ? set + kTokenOutputAt
                                         : nullptr;
    if (last && p.sets != nullptr) LetAttentionStart(p, launches, lane);
    const int odd = norms % 2;
    if (step.gain != nullptr) ++norms;
    float norm = 1.0f;
    TokenRow row = LoadTokenRow<C>(step, share.begin, lane);
    for (int32_t tile = share.begin; tile < share.end; ++tile) {
      TokenRow ahead = row;
      if (tile + 1 < share.end) ahead = LoadTokenRow<C>(step, tile + 1, lane);
      BarrierWait(shared.Summed(slot.at), slot.parity);
      if (step.gain != nullptr && tile == share.begin) {
        float squares = 0.0f;
#pragma unroll
        for (int w = 0; w < C::kWarps; ++w) {
          squares += __uint_as_float(LoadShared4(shared.Squares(odd, w, lane)));
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
          squares += __shfl_xor_sync(0xffffffffu, squares, offset);
        }
        norm = rsqrtf(squares / static_cast<float>(step.k) + step.epsilon);
      }
      const float sum = TakeSum<C>(shared, slot.at, lane);
      BarrierArriveBehind(shared.Taken(slot.at), __float_as_uint(sum));  // by each lane
      slot.Advance(C::kSlots);
      StoreTokenRow<C>(step, next, last, row, tile, lane, sum * (row.scale * norm) + row.bias);
      row = ahead;
    }
  }
}

template <class C>
__global__ void __maxnreg__(C::kRegisters) OneTokenChain(const __grid_constant__ OneTokenParams p) {
  extern __shared__ uint8_t memory[];
  const OneTokenShared<C> shared((SharedAddress(memory) + 1023) & ~1023u, p);
  if (threadIdx.x == 0) {
    for (int s = 0; s < p.ring; ++s) {
      BarrierInit(shared.Full(s), 1);
      BarrierInit(shared.Empty(s), C::kWarps);
    }
    for (int s = 0; s < C::kSlots; ++s) {
      BarrierInit(shared.Summed(s), C::kWarps * 32);
      BarrierInit(shared.Taken(s), 32);
    }
    BarrierInitFence();
  }
  const uint32_t launches = TokenLaunches(p);
  __syncthreads();
  if (p.sets == nullptr) AllowNextKernel();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (warp < C::kWarps) {
    MultiplyToken(shared, p, launches, warp, lane);
  } else if (warp == C::kWarps) {
    if (lane == 0) BringTokenWeights(shared, p);
  } else {
    FinishToken(shared, p, launches, lane);
  }
}

}  // namespace aisp::cuda
