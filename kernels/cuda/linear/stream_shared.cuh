// Shared memory of a CTA of the kernel for few rows (stream_linear.cuh): the ring of stages, the barriers that say who may go on, and the
// place where warpgroups add their sums. Addresses only; it owns nothing.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/split_join.cuh"
#include "kernels/cuda/linear/stream_config.cuh"

namespace aisp::cuda {

// Shared memory of a CTA by address.
template <class C>
struct StreamShared {
  static constexpr int kConverters = !C::kConvert ? 0 : C::kTokens <= 16 ? 32 : 64;
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
    return C::kConvert ? FullWeight(stage) + 24 * C::kStages : FullInput(stage);
  }
  __device__ SplitJoin<C> Join() const { return {base + kJoinAt}; }
};

// By one thread: addresses of barriers are uniform registers, lanes would do it one after the other anyway.
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

}  // namespace aisp::cuda
