// A bound for a loop that polls (poll.h).
#pragma once

#include "kernels/cuda/poll.h"

namespace aisp::cuda {

// Nothing lives on behind it, so that a loop that may end here needs no register more.
__device__ __forceinline__ void GiveUp(const PollTag& tag, PollSite site) {
  if (tag.report != nullptr) {
    tag.report->node = tag.node;
    tag.report->cta = blockIdx.x;
    tag.report->site = static_cast<uint32_t>(site);
    __threadfence_system();
  }
  __trap();
  __builtin_unreachable();
}

// Counts one poll each time; does not return from the one that is too many.
template <PollSite kSite>
struct PollLimit {
  uint32_t left = kMostPolls;
  __device__ __forceinline__ void Count(const PollTag& tag) {
    if (--left == 0) GiveUp(tag, kSite);
  }
};

}  // namespace aisp::cuda
