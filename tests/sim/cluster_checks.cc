// Invariants of every run:
//   - every token a client sees is the oracle's (client.cc), none lost or doubled, also across
//     takeovers;
//   - no process gets a name back from its successor (cluster.cc);
//   - what clients read over HTTP is complete: tokens, text and finish reasons of every choice
//     (http_client.cc), and no frontend holds anything for a request that has ended;
//   - every request ends exactly once, by its deadline plus the router's grace;
//   - in a calm run, and for requests made after all faults were repaired, every request succeeds;
//   - a request that ends workers ends few of them, and only it is refused for that;
//   - after the repair, no write uses a transport that failed;
//   - no worker gives up a role with work in it, or drains without a reason (worker.cc);
//   - after the repair, every worker has its initial role, and routers place work on it;
//   - after the repair, every name is held by the process that serves under it;
//   - after the repair, every router knows every worker's prefix cache;
//   - after the last request every block of every worker is free or cached, and no lease or
//     transfer is left.
#include <algorithm>
#include <sstream>

#include <fmt/format.h>

#include "tests/sim/cluster.h"

namespace aisp {

void SimCluster::CheckClients(bool at_end) {
  CheckHttp(at_end);
  for (const auto& [client, router] : clients_) {
    client->CheckOverdue(world_.Now());
    if (at_end && client->waiting()) world_.Fail("a request has not ended");
    if (at_end && client->must_succeed && !client->succeeded() &&
        client->outcome() != "cancelled") {
      world_.Fail(
          fmt::format("{} had to succeed: {}", client->request().trace_id, client->outcome()));
    }
  }
}

// Not every seed causes them, so they are counted over the whole run.
void SimCluster::CountQuietWorkers(const std::string& line) {
  for (const auto& [metric, what] :
       {std::pair("aisp_router_quiet_workers_total{", "worker quiet"),
        std::pair("aisp_request_moves_total{", "request moved off a drained or quiet worker")}) {
    if (!line.starts_with(metric)) continue;
    const double times = std::stod(line.substr(line.rfind(' ')));
    if (times > 0) coverage_.Count(what, static_cast<uint64_t>(times));
  }
}

// If long steps are all that slows workers down, none of them counts as lost.
void SimCluster::CheckLongStepsLoseNobody(const std::string& line) {
  const bool lost = line.starts_with("aisp_workers_forgotten_total{cause=\"silent\"") ||
                    line.starts_with("aisp_takeovers_total{");
  if (settings_.long_steps_alone && lost && !line.ends_with(" 0"))
    world_.Fail("workers in long steps were taken for lost: " + line);
}

// At rest a router knows every worker and its cached blocks.
void SimCluster::CheckMetrics(const RouterProcess& router) {
  std::istringstream lines(router.metrics->Render());
  size_t known = 0;
  for (std::string line; std::getline(lines, line);) {
    CountQuietWorkers(line);
    CheckLongStepsLoseNobody(line);
    if (!line.starts_with("aisp_router_prefix_view_blind{")) continue;
    ++known;
    if (line.ends_with(" 1"))
      world_.Fail(router.process->name + " is blind to a prefix cache: " + line);
  }
  if (known != workers_.size())
    world_.Fail(
        fmt::format("{} knows {} of {} workers", router.process->name, known, workers_.size()));
}

// A name is held by the process that serves under it, not by a replaced one.
void SimCluster::CheckNames(const RouterProcess& router) {
  for (const WorkerStatus& status : router.router->Workers()) {
    const auto slot = std::find_if(workers_.begin(), workers_.end(),
                                   [&](const WorkerSlot& w) { return w.name == status.id; });
    if (slot == workers_.end() || slot->incarnation == status.incarnation) continue;
    world_.Fail(
        fmt::format("{}: the name {} is held by another process", router.process->name, status.id));
  }
}

// If only one request ends workers, it ends few, and no other is refused for it. (Each of several
// routers knows only its own requests: an innocent one may be all that it sees.)
void SimCluster::CheckPoisonAlone() {
  if (!settings_.poison_alone) return;
  const uint64_t ended = coverage_.Get("worker ended by a request");
  coverage_.Peak("workers ended by one request", ended);
  // At most two while it runs alone, of any role; else three.
  if (ended > 3) world_.Fail(fmt::format("one request ended {} workers", ended));
  const uint64_t prefills = coverage_.Get("prefill worker ended by a request");
  if (prefills > 2) world_.Fail(fmt::format("one request ended {} prefill workers", prefills));
  if (settings_.routers == 1 && coverage_.Get("request taken for poison") > 0)
    world_.Fail("a request was refused for another one that ends workers");
}

void SimCluster::CheckQuiet() {
  CheckPoisonAlone();
  CheckClients(/*at_end=*/true);
  if (fabric_.AnyFallen() || fallback_.AnyFallen())
    world_.Fail("a lane that fell was not replaced");
  if (retiring_routers_ > 0) world_.Fail("a drained router did not end");
  for (const auto& running : routers_) {
    const RouterProcess& r = *running;
    if (!r.router->Idle()) world_.Fail(r.process->name + " is not idle");
    if (Status ready = r.router->Ready(); !ready)
      world_.Fail(r.process->name + ": " + ready.error().message);
    r.frontend->CheckQuiet();
    CheckMetrics(r);
    CheckNames(r);
  }
  for (WorkerSlot& slot : workers_) {
    if (slot.worker == nullptr) {
      world_.Fail(slot.name + " did not come back");
    } else {
      slot.worker->CheckQuiet();
      if (!Serves(slot)) world_.Fail(slot.name + " serves and a router does not take it so");
      if (slot.worker->prefill() != slot.prefill)
        world_.Fail(slot.name + " did not get the role back that it was started with");
    }
  }
}

}  // namespace aisp
