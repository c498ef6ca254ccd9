// Whether a worker had better fetch the beginning of a prompt from another worker's cache
// than compute it: by what computing takes it and by what such a pull took that pair of workers.
// Pure functions: any thread.
#pragma once

#include <span>
#include <vector>

#include "router/policy.h"

namespace aisp {

// Leading tokens that a worker has once it has brought them into its pool from its tiers.
struct HeldPrefix {
  int32_t tokens = 0;
  double promote_ms = 0;  // 0: they are in its pool
};

// What it does best with its own tiers for this prompt before it computes the rest.
HeldPrefix OwnPrefix(const RequestSummary& request, const WorkerView& worker);

// Workers that hold most of the prompt, a few; empty where pulls are off or nobody holds a block.
std::vector<int> PrefixHolders(const RequestSummary& request, std::span<const WorkerView> workers);

// The one of them from which `computes`, the worker that computes the rest, would have it soonest.
PullChoice BestPull(const RequestSummary& request, std::span<const WorkerView> workers,
                    std::span<const int> holders, int computes);

// The worker as it is once it has pulled.
WorkerView WithPrefix(const WorkerView& worker, int32_t tokens);

// Adds the pull that is worth it to whoever computes the prompt.
void AddPull(const RequestSummary& request, std::span<const WorkerView> workers,
             Placement* placement);

}  // namespace aisp
