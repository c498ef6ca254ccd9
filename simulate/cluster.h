// Cluster: the real router over simulated workers, in simulated time. One thread; a run is a
// function of its inputs and the seed, but for the CPU times of decisions.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "loadgen/prompts.h"
#include "planner/planner.h"
#include "router/router.h"
#include "simulate/profile.h"

namespace aisp::simulate {

struct ClusterOptions {
  std::vector<Fleet> fleets;
  RouterOptions router;
  // Replicas that share nothing but the workers; clients go to each in turn.
  int routers = 1;
  // Each request asks for what the router counts as served well, so that one that nobody is
  // predicted to serve in time is refused at once.
  bool objectives = false;
  // Where prompts are computed, for comparisons.
  PrefillPreference prefill = PrefillPreference::kAuto;
  // Plans four times a second, as `aisp planner` does over running workers.
  std::optional<planner::PlannerOptions> planner;
  uint64_t seed = 1;
};

// What became of one request.
struct Served {
  enum class End : uint8_t { kDone, kRefused, kFailed };
  End end = End::kFailed;
  double arrived_s = 0;
  double ttft_ms = 0;  // from its arrival, the frontend's time included
  double tpot_ms = 0;
  double e2e_ms = 0;
  double predicted_ttft_ms = 0;  // by the router; 0: its policy predicts nothing
  double predicted_tpot_ms = 0;
  ServiceClass service_class = ServiceClass::kInteractive;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;

  // What yields has no limits.
  bool Within(const Objective& limits) const {
    return end == End::kDone && (Yields(service_class) || limits.MetBy(ttft_ms, tpot_ms));
  }
};

struct Outcome {
  std::vector<Served> requests;
  double seconds = 0;  // simulated, from the first arrival to the last end
  double wall_seconds = 0;
  std::map<std::string, int64_t> reasons;  // of placements
  double prefill_busy = 0;                 // mean over workers, as a part of `seconds`
  double decode_busy = 0;
  int64_t prompt_tokens = 0;
  int64_t computed_prompt_tokens = 0;
  int64_t preemptions = 0;
  // CPU time that the router needed to take and place each request, sorted.
  std::vector<float> decisions_us;
  // With a planner: what the workers were at each decision.
  struct Roles {
    double at_s = 0;
    int prefill = 0;
    int decode = 0;
    int parked = 0;
    int changing = 0;
  };
  std::vector<Roles> roles;
  int64_t role_changes = 0;
  bool given_up = false;  // the run was ended early: see Run
};

// Plays `items`, sent at `at_s` (ascending, one each), and waits for the last answer. Ends early
// once more than `hopeless` of all requests have missed `limits`. INVALID_ARGUMENT for a prompt
// that no worker's pool can hold.
Result<Outcome> Run(const ClusterOptions& options, const std::vector<loadgen::WorkItem>& items,
                    const std::vector<double>& at_s, const Objective& limits, double hopeless);

}  // namespace aisp::simulate
