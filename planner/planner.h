// Planner: how many workers should prefill, decode and be parked, from the routers' reports. A
// state machine without I/O: Decide is called several times a second with an observation and
// returns role changes, which the caller requests. The same code plans for running workers (`aisp
// planner`) and for simulated ones (`aisp simulate --planner`).
//
// The target is the split with the largest headroom for the load (planner/capacity.h). The current
// split is left only for one that is clearly better for some time (a short time if the load exceeds
// the current one), and never during a change. With fewer workers needed, the others are parked
// after a delay; with more, parked ones return at once, up to the budget. A change is a
// compare-and-set at the worker, so that it cannot undo another planner's change that it did not
// know.
//
// One thread. No clock of its own: `now` is given and never goes back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "planner/capacity.h"
#include "planner/load_forecast.h"
#include "router/router.h"

namespace aisp::planner {

struct PlannerOptions {
  Objective limits = {500, 50};
  int max_workers = 0;  // maximum number of working (unparked) workers; 0: all
  int min_workers = 1;
  bool park = true;
  // Rates are measured over `window`; growth is extrapolated by `lead`.
  Duration window = std::chrono::seconds(8);
  Duration lead = std::chrono::seconds(4);
  // Another split must have `gain` times the headroom for the time `agree`, or for a short time if
  // the current split does not serve the load.
  double gain = 1.08;
  Duration agree = std::chrono::seconds(2);
  Duration agree_short = std::chrono::milliseconds(500);
  // With so much headroom the split is kept, whatever is better; 0: no such bound.
  double enough = 0;
  // The split to return to after `home_after` without requests, and while the load is low: a past
  // load says nothing about the next one. Best without prefill workers: that serves any load at
  // first, and is reached quickly.
  std::optional<Split> home;
  Duration home_after = std::chrono::seconds(1);
  // Workers are added until the headroom is `shrink_above`. One is parked if the rest keep that
  // much for `shrink_after`.
  double shrink_above = 1.6;
  Duration shrink_after = std::chrono::seconds(60);
  // No change the other way for so long after one; a refused change is not requested sooner.
  Duration rest = std::chrono::seconds(3);
  // Running streams of a worker that changes move after at least this time, or after one and a half
  // times the duration of most streams.
  Duration move_after = std::chrono::seconds(2);
  Duration deadline = std::chrono::seconds(30);
};

// The options of the planner that `aisp up` starts over `workers` workers: it parks none, keeps a
// split that serves the load, since a change costs streams that move and a worker that is absent
// (decision 126), and has a home without prefill workers.
inline PlannerOptions OptionsOfUp(int workers) {
  PlannerOptions options;
  options.park = false;
  options.enough = 1;
  options.home = Split{0, workers};
  return options;
}

// One observation of all routers together.
struct Observation {
  std::vector<WorkerStatus> workers;
  RouterTotals totals;
};

struct Change {
  std::string worker;
  RoleWish wish;
  std::string reason;
};

struct Plan {
  std::vector<Change> changes;
  // The split that the load needs within the budget, for autoscalers; the number of existing
  // workers does not matter.
  Split wanted;
  Split current;
  double headroom = 0;  // of the current split
  Load load;            // as forecast
  std::string reason;   // of this decision, for the log
};

class Planner {
 public:
  explicit Planner(const PlannerOptions& options)
      : options_(options), forecast_(options.window, options.lead) {}

  Plan Decide(Instant now, const Observation& seen);
  // A requested change was refused: its worker is left alone for a while.
  void Refused(Instant now, const std::string& worker);

 private:
  struct Fleet;

  Plan Judge(Instant now, const Observation& seen);
  static std::string Figures(const Plan& plan, const Best& best);
  Split Wanted(const Load& load, const Machine& machine, int most) const;
  // How long targets in this direction have been wanted.
  Duration Agreed(Instant now, const Split& direction);
  void Disagreed(Instant now);
  // No requests and nothing running for long enough.
  bool Idle(Instant now, const Fleet& fleet);
  bool Better(const Load& load, const Fleet& fleet, const Split& now, const Split& other) const;
  bool WorthAChange(const Plan& plan, const Fleet& fleet, const Best& best) const;
  // Whether the gain of `best` outweighs the capacity lost while workers change.
  bool Pays(const Fleet& fleet, const Plan& plan, const Best& best) const;
  Duration MoveAfter(const Load& load) const;
  // How many workers should work now: the wanted number, plus those that may not be parked yet.
  int Working(Instant now, const Fleet& fleet, const Split& wanted);
  // At most `left` changes now.
  void Changes(Instant now, const Fleet& fleet, const Split& target, int left, Plan* plan);
  bool Homely(const Plan& plan, const Fleet& fleet, const Best& best) const;

  const PlannerOptions options_;
  LoadForecast forecast_;
  std::optional<StepCost> prompts_alone_;  // of a prefill-only worker; the last known costs
  // The signs of the wanted differences in numbers, and of the last change's.
  Split candidate_;
  Split changed_;
  Duration agreed_{};  // time for which a target in this direction has been better
  Instant decided_ = kNever;
  Instant idle_since_ = kNever;
  Instant rest_until_;
  Instant low_since_ = kNever;
  std::map<std::string, Instant> refused_;  // until when a worker is left alone
};

}  // namespace aisp::planner
