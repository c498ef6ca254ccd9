// Decode attention in one launch, the start state of its CTAs: computed once per step
// (fused_plan.cu) and read by every layer's launch (fused.cu). Lengths and tables are the same for
// all layers. Finding a share's first keys takes three dependent round trips to L2, 2 us in which
// memory is idle; reading the plan takes one.
//
// A CTA's plan: where its loop begins; for each warp how far its copies have looked ahead; for each
// lane the KV slots of its first two batches of tiles (KvCopies).
#pragma once

#include <cstring>

#include "kernels/cuda/attention/fused_share.cuh"

namespace aisp::cuda::fused {

struct PlannedCta {
  uint4 segments[3];
  int32_t share;
  int32_t total;
  int32_t unused[2];
};
struct PlannedWarp {
  uint4 segments[3];
  int32_t top;
  int32_t left;
  int32_t next_left;
  int32_t unused;
};
struct alignas(16) CtaPlan {
  PlannedCta cta;
  PlannedWarp warps[kWarps];
  uint4 lanes[kThreads];  // Ahead::lane
};
static_assert(sizeof(PlannedCta) == 64 && sizeof(PlannedWarp) == 64);

template <class Segments>
__device__ __forceinline__ void StoreSegments(const Segments& segments, uint4 (&to)[3]) {
  static_assert(sizeof(segments) == sizeof(to));
  memcpy(to, &segments, sizeof(to));
}
template <class Segments>
__device__ __forceinline__ Segments LoadSegments(const uint4 (&from)[3]) {
  Segments segments{Segment{}};
  memcpy(&segments, from, sizeof(from));
  return segments;
}

// Read by every thread in one round trip; bypasses L1, which may hold an earlier step's plan.
template <class T>
__device__ __forceinline__ T LoadPlanned(const T* from) {
  constexpr int kPieces = sizeof(T) / 16;
  union {
    uint4 pieces[kPieces];
    T value;
  };
#pragma unroll
  for (int i = 0; i < kPieces; ++i) pieces[i] = __ldcg(reinterpret_cast<const uint4*>(from) + i);
  return value;
}

}  // namespace aisp::cuda::fused
