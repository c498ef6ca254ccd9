// Planner: how many workers shall prefill, decode and be parked, from what routers report. A state
// machine without I/O: Decide is called some times a second with what is known and answers with
// role changes to ask for; whoever calls asks for them. The same code plans for running workers
// (`aisp planner`) and for simulated ones (`aisp simulate --planner`).
//
// What is wanted is the split whose headroom for the load (planner/capacity.h) is largest. It is
// left only when another one is clearly better, for some time (a short one where what there is does
// not suffice), and never while a change is under way. Fewer workers than there are: the others are
// parked, late; more: parked ones come back, at once, up to the budget. A change is a
// compare-and-set at the worker, so that what a second planner has done in the meantime is not
// undone by a decision made without it.
//
// One thread. No clock of its own: `now` is given and never goes back.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "planner/capacity.h"
#include "router/router.h"

namespace aisp::planner {

struct PlannerOptions {
  Objective limits = {500, 50};
  int max_workers = 0;  // that prefill or decode at a time; 0: all that there are
  int min_workers = 1;
  bool park = true;
  // Of the load: seconds that a rate is taken over; a growing one is seen so far ahead.
  Duration window = std::chrono::seconds(8);
  Duration lead = std::chrono::seconds(4);
  // Another split must be better by so much, for so long; for the short time where the one that
  // there is does not serve the load.
  double gain = 1.08;
  Duration agree = std::chrono::seconds(2);
  Duration agree_short = std::chrono::milliseconds(500);
  // A split with so much headroom is left for none that has more; 0: for any clearly better one.
  double enough = 0;
  // What the workers go back to once nothing was asked of them for so long, and while little is
  // asked: what they did before a load that is over says nothing of the next one. Best one without
  // prefill workers, which serves what comes first whatever it is, and is reached in a moment.
  std::optional<Split> home;
  Duration home_after = std::chrono::seconds(1);
  // Below this headroom more workers are wanted; one is parked where the rest keep the second for
  // so long.
  double grow_below = 1.1;
  double shrink_above = 1.6;
  Duration shrink_after = std::chrono::seconds(60);
  // No new decision for so long after a change; one that was refused is not asked for again sooner.
  Duration rest = std::chrono::seconds(3);
  // Running streams of a worker that changes go elsewhere after so long at least, after half as
  // long again as most of them take at most.
  Duration move_after = std::chrono::seconds(2);
  Duration deadline = std::chrono::seconds(30);
};

// What was seen at one moment, of all routers together.
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
  // What the load would need, whatever there is: for autoscalers. Within the budget.
  Split wanted;
  Split current;
  double headroom = 0;  // of what there is now
  Load load;            // as forecast
  std::string reason;   // of this decision, for people
};

class Planner {
 public:
  explicit Planner(const PlannerOptions& options) : options_(options) {}

  Plan Decide(Instant now, const Observation& seen);
  // A change that was asked for was refused: its worker is left alone for a moment.
  void Refused(Instant now, const std::string& worker);

 private:
  struct Sample {
    Instant at;
    RouterTotals totals;
  };
  struct Fleet;

  Plan Judge(Instant now, const Observation& seen);
  static std::string Figures(const Plan& plan, const Best& best);
  void Remember(Instant now, const RouterTotals& totals);
  // Requests a second and their shape, of the samples from `from` on.
  Load Between(const Sample& from, const Sample& to) const;
  Load Forecast();
  // Counts arrivals by the second.
  void Count(Instant now, const RouterTotals& totals);
  double Dispersion() const;
  Split Wanted(const Load& load, const Machine& machine, int most) const;
  // For how long the target has been wanted, which is not the split of now.
  Duration Agreed(Instant now, const Split& target);
  void Disagreed(Instant now);
  // Nothing is asked and nothing runs, for long enough.
  bool Idle(Instant now, const Fleet& fleet);
  bool Better(const Load& load, const Fleet& fleet, const Split& now, const Split& other) const;
  bool WorthAChange(const Plan& plan, const Fleet& fleet, const Best& best) const;
  // What is late while workers change is won back by what `best` serves more.
  bool Pays(const Fleet& fleet, const Plan& plan, const Best& best) const;
  Duration MoveAfter(const Load& load) const;
  // How many shall work now: the wanted, but for those that may not be parked yet.
  int Working(Instant now, const Fleet& fleet, const Split& wanted);
  // At most `left` of them now.
  void Changes(Instant now, const Fleet& fleet, const Split& target, int left, Plan* plan);
  bool Homely(const Plan& plan, const Fleet& fleet, const Best& best) const;

  const PlannerOptions options_;
  std::deque<Sample> samples_;       // over the window
  std::deque<double> arrivals_;      // in each of the last seconds
  std::optional<Sample> second_;     // at which the present one began
  double new_tokens_ = 64;           // of a request, the last that was known
  std::optional<StepCost> prompts_;  // of a worker that ran nothing else, the last that was known
  Split candidate_;
  Duration agreed_{};  // for which it has been better
  Instant decided_ = kNever;
  Instant idle_since_ = kNever;
  double measured_per_s_ = 0;  // requests that came: all the time and lately
  Instant rest_until_;
  Instant low_since_ = kNever;
  std::map<std::string, Instant> refused_;  // until when a worker is left alone
};

}  // namespace aisp::planner
