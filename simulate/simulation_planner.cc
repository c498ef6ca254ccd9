// Planner decisions, as often as over running workers.
#include <chrono>

#include "simulate/simulation.h"

namespace aisp::simulate {
namespace {

constexpr Duration kPlanInterval = std::chrono::milliseconds(250);

}  // namespace

// Totals over all routers, as a planner adds up their reports.
RouterTotals Simulation::Totals() const {
  RouterTotals all;
  for (const auto& router : routers_) {
    const RouterTotals& one = router->Totals();
    all.requests += one.requests;
    all.prompt_tokens += one.prompt_tokens;
    all.placed_tokens += one.placed_tokens;
    all.uncached_tokens += one.uncached_tokens;
    all.finished += one.finished;
    all.new_tokens += one.new_tokens;
  }
  return all;
}

void Simulation::PlanLater() { Schedule(Now() + kPlanInterval, {Event::kPlan}); }

void Simulation::Plan() {
  PlanLater();
  const planner::Plan plan = planner_->Decide(Now(), {routers_.front()->Workers(), Totals()});
  Outcome::Roles roles;
  roles.at_s = ToSeconds(Now() - kSimulationStart);
  for (const auto& worker : workers_) {
    if (worker->changing()) {
      ++roles.changing;
    } else if (worker->role() == v1::ROLE_PARKED) {
      ++roles.parked;
    } else {
      ++(worker->prefill() ? roles.prefill : roles.decode);
    }
  }
  outcome_.roles.push_back(roles);
  for (const planner::Change& change : plan.changes) {
    routers_.front()->SetWorkerRole(
        change.worker, change.wish,
        [this, id = change.worker](const Result<Router::RoleState>& begun) {
          if (begun) {
            ++outcome_.role_changes;
          } else {
            planner_->Refused(Now(), id);
          }
        });
  }
}

}  // namespace aisp::simulate
