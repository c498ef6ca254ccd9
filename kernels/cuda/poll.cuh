// A bound for a loop that polls (poll.h).
#pragma once

#include "kernels/cuda/poll.h"

namespace aisp::cuda {

// Keeps no values live, so that a polling loop needs no additional registers.
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

// Counts a poll; does not return when there were too many.
template <PollSite kSite>
struct PollLimit {
  uint32_t left = kMostPolls;
  __device__ __forceinline__ void Count(const PollTag& tag) {
    if (--left == 0) GiveUp(tag, kSite);
  }
};

}  // namespace aisp::cuda
