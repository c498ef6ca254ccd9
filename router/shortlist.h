// Shortlist: the workers for which the cost policy predicts placements in full. Of many workers
// these are the few that a quick estimate puts first: waiting, computing, the time of a token and
// the request's limits, without what is learnt of hand-overs and without pairs. Pure.
#pragma once

#include <span>
#include <vector>

#include "router/policy.h"

namespace aisp {

struct Shortlist {
  // So many local placements, and so many workers of either role for pairs.
  static constexpr size_t kLocals = 8;
  static constexpr size_t kEach = 4;
  static constexpr size_t kPairs = kEach * kEach;

  bool any_prefill = false;   // is available
  std::vector<int> locals;    // decode workers that would compute the prompt themselves
  std::vector<int> decodes;   // decode workers that would not, best first where there are many
  std::vector<int> prefills;  // likewise
  std::vector<int> holders;   // of its beginning, for pulls
  std::vector<int> pullers;   // decode workers that would fetch it from these
};

// Indices into `workers`. Of equal ones the request's random value decides which are taken.
Shortlist MakeShortlist(const RequestSummary& request, std::span<const WorkerView> workers,
                        const CostPolicyOptions& options);

}  // namespace aisp
