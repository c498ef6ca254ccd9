// Whether a worker should pull a prefix from another worker's cache instead of computing it, from
// the predicted computing time and past pulls between the two workers. Pure functions: any thread.
#pragma once

#include <span>
#include <vector>

#include "router/policy.h"

namespace aisp {

// Leading tokens in a worker's pool, after loading from its tiers.
struct HeldPrefix {
  int32_t tokens = 0;
  double promote_ms = 0;  // time to load from tiers; 0: all in its pool
};

// The best use of its own tiers for this prompt before it computes the rest.
HeldPrefix OwnPrefix(const RequestSummary& request, const WorkerView& worker);

// The few workers that hold most of the prompt; empty if pulls are off or none holds a hash unit.
std::vector<int> PrefixHolders(const RequestSummary& request, std::span<const WorkerView> workers);

// The best pull for `computes`, the worker that computes the rest. holder is -1 if none is worth
// it; the verdict says why.
PullChoice BestPull(const RequestSummary& request, std::span<const WorkerView> workers,
                    std::span<const int> holders, int computes);

// The worker's view after the pull.
WorkerView WithPrefix(const WorkerView& worker, int32_t tokens);

// Adds a pull for the prefilling worker, if it is worth it.
void AddPull(const RequestSummary& request, std::span<const WorkerView> workers,
             Placement* placement);

}  // namespace aisp
