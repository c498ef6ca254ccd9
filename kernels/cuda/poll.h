// What bounds a wait on the device. A kernel that polls what another CTA or another kernel
// publishes counts; when they do not come it leaves here who waited and traps, so that the launch
// fails, the device's next call gives an error that names node and kernel, and the engine ends its
// sequences as retryable. Waiting is never without end, in any build.
//
// PollReport lies in page-locked memory that the device writes; CudaDevice owns and reads it. Pure
// data; any thread.
#pragma once

#include <cstdint>

namespace aisp::cuda {

enum class PollSite : uint32_t {
  kNone,
  kStreamParts,     // sums of a layer of few rows, of other CTAs
  kChainParts,      // the same within a chain
  kChainInput,      // the layer before in a chain
  kTokenSlots,      // a token's row, of the layer or of the attention before
  kAttentionRows,   // q, k or v, of the layer before
  kAttentionParts,  // attention of other CTAs
  kDrawSlices,      // slices of a row of logits
};

struct PollReport {
  uint32_t site = 0;  // PollSite; 0: nobody has given up
  int32_t node = -1;  // of the programme
  uint32_t cta = 0;
};

// Given to a kernel.
struct PollTag {
  PollReport* report = nullptr;  // null: it traps without a report
  int32_t node = -1;
};

// Polls of one wait: each takes a trip to L2, so some 10 s. No wait of a step that works takes as
// long as the step.
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
    case PollSite::kNone:
      break;
  }
  return "nothing";
}

}  // namespace aisp::cuda
