// Shortlist: the workers for which the cost policy predicts placements in full. A quick estimate
// picks them: wait, prefill time, TPOT and the request's limits, without learnt corrections,
// hand-off costs and pairs. Pure.
#pragma once

#include <span>
#include <vector>

#include "router/policy.h"

namespace aisp {

struct Shortlist {
  // Maximum number of local placements, and of workers of each role for pairs.
  static constexpr size_t kLocals = 8;
  static constexpr size_t kEach = 4;
  static constexpr size_t kPairs = kEach * kEach;

  bool any_prefill = false;   // a prefill worker is available
  std::vector<int> locals;    // aggregated placements: decode workers that would prefill the prompt
  std::vector<int> decodes;   // decode workers for a remote prefill, best first if there are many
  std::vector<int> prefills;  // prefill workers, likewise
  std::vector<int> holders;   // holders of a prefix, for pulls
  std::vector<int> pullers;   // decode workers that would pull from them
};

// Indices into `workers`. Ties are broken by the request's random value.
Shortlist MakeShortlist(const RequestSummary& request, std::span<const WorkerView> workers,
                        const CostPolicyOptions& options);

}  // namespace aisp
