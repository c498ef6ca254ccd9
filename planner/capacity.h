// Capacity: how much of a load given numbers of prefill and decode workers serve within their
// limits. The model: the fixed point of rows and step time on a decode worker (Little's law), an
// M/D/c queue before the workers that prefill, and the best part of prompts to prefill remotely.
// Pure functions; any thread.
#pragma once

#include <cstdint>

#include "router/policy.h"
#include "router/step_time_model.h"

namespace aisp::planner {

// Means over the requests of some seconds.
struct Load {
  double requests_per_s = 0;
  double prompt_tokens = 0;    // per request
  double uncached_tokens = 0;  // of these: not cached, to be computed
  double new_tokens = 1;
  // Variance of the arrivals per second relative to a Poisson process; above 1 for bursts.
  double dispersion = 1;
};

// The capabilities of one worker. All are assumed equal.
struct Machine {
  StepCost cost;
  int32_t chunk_tokens = 512;
  int32_t max_running = 256;
  double kv_tokens = 1e9;  // capacity of its KV pool
  double handoff_ms = 2;   // exposed time of a remote prefill's hand-off
};

struct Split {
  int prefill = 0;
  int decode = 0;
  int workers() const { return prefill + decode; }
  bool operator==(const Split&) const = default;
};

// The factor by which the load may grow until the split no longer serves it within `limits`; 2 is
// "twice as much". 0 without a decode worker; kPlenty without a load.
inline constexpr double kPlenty = 100;
double Headroom(const Load& load, const Machine& machine, const Split& split,
                const Objective& limits);

// The split with the most headroom; among equals the one with fewer prefill workers.
struct Best {
  Split split;
  double headroom = 0;
};
Best BestSplit(const Load& load, const Machine& machine, int workers, const Objective& limits);

}  // namespace aisp::planner
