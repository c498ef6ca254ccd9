// Simulation: one run of a cluster (simulate/cluster.h): routers, workers, clients, planner, and
// the events between them. Parts: simulation.cc (cluster and event loop), simulation_links.cc
// (messages), simulation_clients.cc (requests), simulation_planner.cc (roles).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/metrics.h"
#include "simulate/cluster.h"
#include "simulate/event_queue.h"
#include "simulate/replicas.h"
#include "simulate/worker.h"

namespace aisp::simulate {

inline constexpr Instant kSimulationStart{1'000'000'000};

class Simulation final : public World, private LinkSender<v1::RouterMessage> {
 public:
  Simulation(const ClusterOptions& options, const std::vector<loadgen::WorkItem>& items,
             const std::vector<double>& at_s, const Objective& limits, double hopeless);
  Outcome Play();

  Instant Now() const override { return clock_.Now(); }
  void SendToRouter(Worker& from, v1::WorkerMessage message) override;
  void StepEndsAt(Worker& worker, Instant at) override {
    Schedule(at, {Event::kStepEnd, &worker, nullptr, 0});
  }
  void KvArrivesAt(Worker& decode, uint64_t wire_id, Instant at) override {
    Schedule(at, {Event::kKv, &decode, nullptr, wire_id});
  }
  void JobArrivesAt(Worker& prefill, Worker& decode, uint64_t wire_id, Instant at) override {
    Schedule(at, {Event::kJob, &prefill, &decode, wire_id});
  }
  void PulledAt(Worker& puller, Worker& decode, uint64_t wire_id, Instant at) override {
    Schedule(at, {Event::kPulled, &puller, &decode, wire_id});
  }
  void JobRefusedAt(Worker& decode, uint64_t wire_id, Instant at) override {
    Schedule(at, {Event::kJobRefused, &decode, nullptr, wire_id});
  }
  void RoleTimerAt(Worker& worker, Instant at) override {
    Schedule(at, {Event::kRoleTimer, &worker, nullptr, 0});
  }
  void Rejoin(Worker& worker) override;
  Worker* Named(const std::string& id) override { return by_name_.at(id); }
  bool SeveralRouters() const override { return routers_.size() > 1; }

 private:
  // A request from its client's view.
  struct Client final : RequestObserver {
    void OnRouted(const RouteDecision& route) override {
      ++simulation->outcome_.reasons[route.reason];
      Served& served = simulation->outcome_.requests[index];
      if (route.predicted_ttft_ms <= 0) return;
      served.predicted_ttft_ms = route.predicted_ttft_ms + ToMs(simulation->frontend_);
      served.predicted_tpot_ms = route.predicted_tpot_ms;
    }
    void OnTokens(const v1::TokenEvent& event) override {
      if (tokens == 0) first = simulation->Now();
      tokens += event.tokens_size();
    }
    void OnFinish(v1::FinishReason reason, const Error& /*error*/, Duration /*hint*/) override {
      simulation->Finished(index, reason == v1::FINISH_LENGTH);
    }
    Simulation* simulation = nullptr;
    size_t index = 0;
    int64_t tokens = 0;
    Instant first;
  };

  void Schedule(Instant at, Event event) { events_.Add(at, event); }
  void Send(LinkId link, v1::RouterMessage message) override;
  void Close(LinkId link) override {
    AISP_CHECK(link.value > 0);  // link of a role that its worker has left
  }
  void AddWorkers(const ClusterOptions& options);
  // Link of the worker to router 0; links to the other routers follow it.
  LinkId NewLink(Worker* worker);
  Replica RouterOf(LinkId link) const {
    return {(link.value - 1) % routers_.size(), routers_.size()};
  }
  // The router with the earliest timer.
  Router& NextRouter() const;
  void Register(Worker& worker);
  RouterTotals Totals() const;
  void PlanLater();
  void Plan();
  void Handle(const Event& event);
  void ScheduleArrival(size_t index);
  void Arrive(size_t index);
  void Finished(size_t index, bool well);
  bool Hopeless() const;
  void Conclude();

  const ClusterOptions& options_;
  const std::vector<loadgen::WorkItem>& items_;
  const std::vector<double>& at_s_;
  const Objective limits_;
  const double hopeless_;
  ManualClock clock_;
  std::vector<std::unique_ptr<Metrics>> metrics_;  // of each router
  v1::Fingerprint fingerprint_;
  loadgen::PromptMaker prompts_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<std::string, Worker*> by_name_;
  std::vector<Worker*> by_link_;
  std::unique_ptr<planner::Planner> planner_;
  std::vector<std::unique_ptr<Router>> routers_;
  EventQueue events_;
  Parked<v1::RouterMessage> to_workers_;
  Parked<v1::WorkerMessage> to_router_;
  std::vector<std::unique_ptr<Client>> clients_;
  Outcome outcome_;
  Duration frontend_, message_;
  std::vector<size_t> finished_;  // clients that get no further calls
  size_t ended_ = 0;
  size_t missed_ = 0;
};

}  // namespace aisp::simulate
