// ParkedRole: a worker that keeps its weights, pool and prefix cache but gets no work: the role of
// workers that a planner does not need at the moment. It registers with the routers, sends
// telemetry, and waits for another role.
//
// Thread: the worker's engine thread. Wiring as for the other roles.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "worker/worker_role.h"
#include "worker/worker_shell.h"

namespace aisp {

class ParkedRole final : public WorkerRole {
 public:
  explicit ParkedRole(const WorkerOptions& options) : options_(options) {}
  void Wire(Engine* engine, const Clock* clock, LinkDialer<v1::WorkerMessage>* routers);

  void Start() override { Activate(1); }
  void SetRouters(const std::vector<std::string>& addresses) override {
    shell_->SetRouters(addresses);
  }
  // The engine has no sequence, but may still have to report the end of one.
  bool CanLaunch() const override { return false; }
  void Launch() override {}
  bool InFlight() const override { return engine_->InFlight(); }
  bool StepDone() override { return engine_->StepDone(); }
  void Collect() override { engine_->Collect(); }
  void OnTransport() override { engine_->PollTiers(); }
  Instant NextTimer() const override { return shell_->NextTimer(); }
  void OnTimer(Instant now) override { shell_->OnTimer(now); }
  void BeginDrain() override;
  void MoveStreams() override { BeginDrain(); }
  bool Drained() const override { return shell_->draining() && !engine_->InFlight(); }
  void CallOffDrain() override { shell_->CallOffDrain(); }
  void StandBy() override { shell_->StandBy(); }
  void Activate(uint64_t role_epoch) override;
  void CloseLinks() override { shell_->CloseLinks(); }
  bool StopWanted() const override { return !shell_->Ousted() || (stop_wanted_ && Drained()); }
  Status Ready() const override { return shell_->Ready(); }
  const Engine& engine() const override { return *engine_; }

  void OnLinkUp(LinkId link, const std::string& /*peer_address*/) override {
    shell_->OnLinkUp(link);
  }
  void OnMessage(LinkId link, v1::RouterMessage message) override;
  void OnLinkDown(LinkId link, const Error& why) override { shell_->OnLinkDown(link, why); }

 private:
  const WorkerOptions options_;
  Engine* engine_ = nullptr;
  std::optional<WorkerShell> shell_;
  bool stop_wanted_ = false;
};

}  // namespace aisp
