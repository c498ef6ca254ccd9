// The warps of the kernel for few rows (stream_linear.cuh) that bring things to the stages: a thread has weights brought, another one the
// tokens, and a warp or two make f16 of these where the products want that.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/linear/f16_input.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/stream_kernels.h"
#include "kernels/cuda/linear/stream_loads.cuh"
#include "kernels/cuda/linear/stream_shared.cuh"

namespace aisp::cuda {

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

// The thread that has weights brought.
//
// What it prefetches into L2 fills the time in which memory has nothing else to do: when the kernel before has asked for all of its
// weights and its stages cannot be reused yet, for about 2 us. Kernels tell each other by a word for each CTA number that counts
// launches. It moves fetches in time and nothing else, so that a word that comes late, or of another kernel, or never, does no harm.
template <class C>
struct WeightProducer {
  const StreamShared<C>& shared;
  const StreamParams& p;
  const CUtensorMap* map;
  int32_t unit;
  int32_t end;
  UnitPlace at;
  StagePlace<C> place;
  uint64_t once = EvictFirstPolicy();

  __device__ __forceinline__ WeightProducer(const StreamShared<C>& in, const StreamParams& params,
                                            const CUtensorMap* weight, int32_t first, int32_t last)
      : shared(in), p(params), map(weight), unit(first), end(last), at(first, params.k_units) {}

  __device__ __forceinline__ void Load() {
    BarrierExpect(shared.FullWeight(place.stage), C::kWeightBytes);
    LoadWeights<C>(shared.Weight(place.stage), shared.FullWeight(place.stage), at.tile, at.k, p,
                   map, once);
    at.Advance();
    place.Advance();
    ++unit;
  }
  // All stages are free.
  __device__ __forceinline__ void FillStages() {
    for (int32_t left = min(end - unit, C::kStages); left > 0; --left) Load();
  }
  // `told`: the word of this CTA when it began.
  __device__ __forceinline__ void Rest(uint32_t told) {
    if (p.prefetch_units > 0 && unit < end &&
        (C::kResident == 1 || KernelBeforeAskedForAll(told))) {
      Prefetch();
    }
    while (unit < end) {
      BarrierWait(shared.Empty(place.stage), place.parity ^ 1);
      Load();
    }
    AddRelaxed(p.asked_for_all + blockIdx.x, 1);
  }

 private:
  // False if it has ended without a word.
  __device__ __forceinline__ bool KernelBeforeAskedForAll(uint32_t told) const {
    while (!BarrierTest(shared.Empty(place.stage), place.parity ^ 1)) {
      if (LoadWordRelaxed(p.asked_for_all + blockIdx.x) != told) return true;
    }
    return false;
  }
  __device__ __forceinline__ void Prefetch() const {
    int32_t ahead = unit + p.prefetch_stride / 2;
    for (int32_t i = 0; i < p.prefetch_units && ahead < end; ++i, ahead += p.prefetch_stride) {
      PrefetchWeightUnit<C>(ahead, p, map);
    }
  }
};

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

}  // namespace aisp::cuda
