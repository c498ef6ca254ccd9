// Bounds waits on the device. A kernel that polls what another CTA or kernel publishes counts its
// polls. When the limit is reached it writes here who waited and traps. So the launch fails, the
// device's next call returns an error that names node and kernel, and the engine ends its sequences
// as retryable. No wait is unbounded, in any build.
//
// PollReport is in page-locked memory that the device writes; CudaDevice owns and reads it. Pure
// data; any thread.
#pragma once

#include <cstdint>

namespace aisp::cuda {

enum class PollSite : uint32_t {
  kNone,
  kStreamParts,     // partial sums of a few-row layer, from other CTAs
  kChainParts,      // the same within a chain
  kChainInput,      // the previous layer in a chain
  kTokenSlots,      // a token's row, from the previous layer or attention
  kAttentionRows,   // q, k or v, from the previous layer
  kAttentionParts,  // attention parts of other CTAs
  kDrawSlices,      // slices of a row of logits
  kGemmParts,       // partial sums of a product of many rows, from another cluster
};

struct PollReport {
  uint32_t site = 0;  // PollSite; 0: none has given up
  int32_t node = -1;  // of the programme
  uint32_t cta = 0;
};

// Passed to a kernel.
struct PollTag {
  PollReport* report = nullptr;  // null: trap without a report
  int32_t node = -1;
};

// Polls per wait, about 10 s, since each takes a round trip to L2. No wait in a working step lasts
// that long.
constexpr uint32_t kMostPolls = 1u << 24;

constexpr const char* PollSiteName(uint32_t site) {
  switch (static_cast<PollSite>(site)) {
    case PollSite::kStreamParts:
      return "a linear layer of few rows waited for sums of other CTAs";
    case PollSite::kChainParts:
      return "linear layers in one launch waited for sums of other CTAs";
    case PollSite::kChainInput:
      return "linear layers in one launch waited for the layer before";
    case PollSite::kTokenSlots:
      return "linear layers of one token waited for their input";
    case PollSite::kAttentionRows:
      return "decode attention waited for q, k and v";
    case PollSite::kAttentionParts:
      return "decode attention waited for parts of other CTAs";
    case PollSite::kDrawSlices:
      return "drawing waited for slices of a row";
    case PollSite::kGemmParts:
      return "a product of many rows waited for sums of other CTAs";
    case PollSite::kNone:
      break;
  }
  return "nothing";
}

}  // namespace aisp::cuda
