// Capacity: how much of a load so many prefill and decode workers serve within their limits, by a
// model of queues and steps: the fixed point of rows and step time on a decode worker (Little's
// law), an M/D/1 queue before a prefill worker, and the best part of prompts to be computed by
// prefill workers. Pure functions; any thread.
#pragma once

#include <cstdint>

#include "router/policy.h"
#include "router/step_time_model.h"

namespace aisp::planner {

// Means over the requests of some seconds.
struct Load {
  double requests_per_s = 0;
  double prompt_tokens = 0;    // of a request
  double uncached_tokens = 0;  // of them: to be computed
  double new_tokens = 1;
  // Variance of the arrivals in a second over that of a Poisson process; bursts have more than 1.
  double dispersion = 1;
};

// What one worker can do. All are taken to be alike.
struct Machine {
  StepCost cost;
  int32_t chunk_tokens = 512;
  int32_t max_running = 256;
  double kv_tokens = 1e9;  // its pool
  double handoff_ms = 2;   // of a prompt computed elsewhere: what nothing hides
};

struct Split {
  int prefill = 0;
  int decode = 0;
  int workers() const { return prefill + decode; }
  bool operator==(const Split&) const = default;
};

// The load times this is what the split serves within `limits`; 2 is "twice as much". 0 without a
// decode worker; kPlenty where there is no load.
inline constexpr double kPlenty = 100;
double Headroom(const Load& load, const Machine& machine, const Split& split,
                const Objective& limits);

// Of all splits of so many workers the one with the most headroom; between equals the one with
// fewer prefill workers.
struct Best {
  Split split;
  double headroom = 0;
};
Best BestSplit(const Load& load, const Machine& machine, int workers, const Objective& limits);

}  // namespace aisp::planner
