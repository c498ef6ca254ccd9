// Cluster: the real router over simulated workers, in simulated time. One thread. A run depends
// only on its inputs and the seed, except for the CPU times of decisions.
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
  // Router replicas that share only the workers; clients use them in turn.
  int routers = 1;
  // Each request asks for the router's SLO, so that it is refused at once if that is predicted to
  // be missed.
  bool objectives = false;
  // Where prefill runs, for comparisons.
  PrefillPreference prefill = PrefillPreference::kAuto;
  // If set, plans four times a second, like `aisp planner`.
  std::optional<planner::PlannerOptions> planner;
  uint64_t seed = 1;
};

// The result of one request.
struct Served {
  enum class End : uint8_t { kDone, kRefused, kFailed };
  End end = End::kFailed;
  double arrived_s = 0;
  double ttft_ms = 0;  // from its arrival, including the frontend
  double tpot_ms = 0;
  double e2e_ms = 0;
  double predicted_ttft_ms = 0;  // predicted by the router; 0: its policy predicts nothing
  double predicted_tpot_ms = 0;
  ServiceClass service_class = ServiceClass::kInteractive;
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;

  // Yielding requests have no limits.
  bool Within(const Objective& limits) const {
    return end == End::kDone && (Yields(service_class) || limits.MetBy(ttft_ms, tpot_ms));
  }
};

struct Outcome {
  std::vector<Served> requests;
  double seconds = 0;  // simulated, from the first arrival to the last end
  double wall_seconds = 0;
  std::map<std::string, int64_t> reasons;  // number of placements by reason
  double prefill_busy = 0;                 // mean over workers, as a fraction of `seconds`
  double decode_busy = 0;
  int64_t prompt_tokens = 0;
  int64_t computed_prompt_tokens = 0;
  int64_t preemptions = 0;
  // CPU time in microseconds to accept and place each request, sorted.
  std::vector<float> decisions_us;
  // With a planner: the workers' roles at each decision.
  struct Roles {
    double at_s = 0;
    int prefill = 0;
    int decode = 0;
    int parked = 0;
    int changing = 0;
  };
  std::vector<Roles> roles;
  int64_t role_changes = 0;
  bool given_up = false;  // ended early: see Run
};

// A run that lasts longer is refused: also without requests, simulated workers report twenty times
// a second.
inline constexpr double kLongestArrivalsS = 7 * 24 * 3600;

// Runs `items`, sent at `at_s` (ascending, one per item), until the last answer ends. Stops early
// once more than the fraction `hopeless` of all requests have missed `limits`. INVALID_ARGUMENT: a
// prompt does not fit in any worker's pool, or the arrivals last longer than a week.
Result<Outcome> Run(const ClusterOptions& options, const std::vector<loadgen::WorkItem>& items,
                    const std::vector<double>& at_s, const Objective& limits, double hopeless);

}  // namespace aisp::simulate
