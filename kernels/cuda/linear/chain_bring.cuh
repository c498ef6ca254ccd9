// The warps of a chain (chain.cuh) that load weights, inputs and norms for the consumers.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/chain_tile.cuh"
#include "kernels/cuda/linear/f16_input.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/stream_loads.cuh"

namespace aisp::cuda {

// Whether a unit belongs to the adapters, and its number along K there.
template <class Step>
__device__ __forceinline__ bool IsAdded(const Step& step, int32_t* k) {
  if constexpr (std::is_same_v<Step, AdaptedStepParams>) {
    if (*k < step.own_units) return false;
    *k -= step.own_units;
    return true;
  }
  return false;
}

template <class C, class Chain>
__device__ __forceinline__ void BringWeights(const ChainShared<C>& shared, const Chain& chain) {
  const uint64_t once = EvictFirstPolicy();
  WeightCursor<C> cursor;
  WeightCursor<C> landed;  // the oldest stage that may still be in flight
  int in_flight = 0;
  for (int s = 0; s < chain.count; ++s) {
    const StreamParams& p = chain.steps[s].p;
    const ChainShare share = ShareOf(chain.steps[s]);
    int32_t tile = share.begin / p.k_units;
    int32_t k = share.begin - tile * p.k_units;
    for (int32_t unit = share.begin; unit < share.end; ++unit) {
      // The ring is full, and memory would idle until the step's first products.
      if (s > 0 && unit == share.begin + C::kStages) {
        const int32_t ahead = min(unit + ChainShared<C>::kUnitsAhead, share.end);
        for (int32_t i = unit; i < ahead; ++i) {
          PrefetchWeightUnit<C>(i, p, &chain.steps[s].weight);
        }
      }
      BarrierWait(shared.EmptyWeight(cursor.stage), cursor.parity ^ 1);
      const bool between = !Chain::kAdapted && s > 0 && unit < share.begin + C::kStages;
      const int most = between ? ChainShared<C>::kInFlightBetween : ChainShared<C>::kInFlight;
      for (; in_flight >= most; --in_flight) {
        BarrierWait(shared.FullWeight(landed.stage), landed.parity);
        landed.Advance();
      }
      ++in_flight;
      BarrierExpect(shared.FullWeight(cursor.stage), C::kWeightBytes);
      const CUtensorMap* map = &chain.steps[s].weight;
      int32_t k_of_map = k;
      if constexpr (Chain::kAdapted) {
        if (IsAdded(chain.steps[s], &k_of_map)) map = &chain.steps[s].up;
      }
      LoadWeights<C>(shared.Weight(cursor.stage), shared.FullWeight(cursor.stage), tile, k_of_map,
                     p, map, once);
      if (++k == p.k_units) {
        k = 0;
        ++tile;
      }
      cursor.Advance();
    }
  }
}

// The step that stores this one's input; -1: it existed before the chain.
template <class Chain>
__device__ __forceinline__ int InputStep(const Chain& chain, int s) {
  if constexpr (Chain::kAdapted) {
    return chain.steps[s].input_step;
  } else {
    return s - 1;
  }
}

template <class C, class Chain>
__device__ __forceinline__ void BringInputs(const ChainShared<C>& shared, const Chain& chain) {
  const uint64_t again = EvictLastPolicy();
  WaitForPreviousKernel();
  InputCursor<C> cursor;
  for (int s = 0; s < chain.count; ++s) {
    const auto& step = chain.steps[s];
    const StreamParams& p = step.p;
    const ChainShare share = ShareOf(chain.steps[s]);
    const int from = InputStep(chain, s);
    if (from >= 0 && share.begin < share.end) {
      AwaitCounter(chain.counters + from, step.input_ready, p.poll);
      GlobalFenceProxyAsync();
    }
    bool v_is_there = false;
    for (int32_t unit = share.begin; unit < share.end; ++unit) {
      int32_t k = unit % p.k_units;
      const CUtensorMap* map = &step.input;
      if constexpr (Chain::kAdapted) {
        if (IsAdded(step, &k)) {
          map = &step.v;
          if (!v_is_there) {
            AwaitCounter(chain.counters + s - 1, step.v_ready, p.poll);
            GlobalFenceProxyAsync();
            v_is_there = true;
          }
        }
      }
      BarrierWait(shared.EmptyInput(cursor.stage), cursor.parity ^ 1);
      BarrierExpect(shared.FullInput(cursor.stage), C::kInputBytes);
      LoadInputs<C>(shared.Input(cursor.stage), shared.FullInput(cursor.stage), k, map, again);
      cursor.Advance();
    }
  }
}

// Converts the first step's input to f16, stage by stage, before the products; later inputs are
// written in f16.
template <class C, class Chain>
__device__ __forceinline__ void ConvertInputs(const ChainShared<C>& shared, const Chain& chain,
                                              int thread) {
  InputCursor<C> cursor;
  const ChainShare share = ShareOf(chain.steps[0]);
  for (int32_t unit = share.begin; unit < share.end; ++unit) {
    BarrierWait(shared.FullInput(cursor.stage), cursor.parity);
    ConvertInput<C, ChainShared<C>::kConverters>(shared.Input(cursor.stage), thread);
    FenceProxyAsync();
    __syncwarp();
    if (thread % 32 == 0) BarrierArrive(shared.Converted(cursor.stage));
    cursor.Advance();
  }
}

// All tokens at once, four per lane, so that one round trip to L2 loads everything. The order of
// the sum depends only on K.
template <class C, class Chain>
__device__ __forceinline__ void BringNorms(const ChainShared<C>& shared, const Chain& chain,
                                           int lane) {
  WaitForPreviousKernel();
  int norms = 0;
  for (int s = 0; s < chain.count; ++s) {
    const ChainStepParams& step = chain.steps[s];
    if (step.input_squares == nullptr) continue;
    const int from = InputStep(chain, s);  // the step within the chain that wrote the squares
    if (lane == 0) AwaitCounter(chain.counters + from, step.input_ready, step.p.poll);
    __syncwarp();
    const StreamParams& before = chain.steps[from].p;
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
    BarrierArrive(shared.NormReady());  // by each lane
    ++norms;
  }
}

}  // namespace aisp::cuda
