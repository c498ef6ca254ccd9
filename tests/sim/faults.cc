// Faults, and their repair at the end.
#include <algorithm>

#include <fmt/format.h>

#include "tests/sim/cluster.h"
#include "worker/incarnation.h"

namespace aisp {

void SimCluster::Schedule(double expected, void (SimCluster::*fault)()) {
  const auto n = static_cast<int>(expected + world_.random.Uniform());
  const double span_ms = ToMs(settings_.arrival_span) * 1.3;
  for (int i = 0; i < n; ++i) {
    world_.After(std::chrono::milliseconds(500) + world_.Ms(0, span_ms), [this, fault] {
      if (!faults_over_) (this->*fault)();
    });
  }
}

void SimCluster::ScheduleFaults() {
  if (settings_.rolling_update) {
    world_.After(std::chrono::milliseconds(700), [this] { RollingUpdate(0); });
  }
  Schedule(settings_.crashes, &SimCluster::CrashWorker);
  Schedule(settings_.pauses, &SimCluster::PauseWorker);
  Schedule(settings_.link_breaks, &SimCluster::BreakLink);
  Schedule(settings_.link_stalls, &SimCluster::StallLink);
  Schedule(settings_.drains, &SimCluster::DrainWorker);
  Schedule(settings_.router_crashes, &SimCluster::CrashRouter);
  Schedule(settings_.router_updates, &SimCluster::UpdateRouter);
  Schedule(settings_.transfer_faults, &SimCluster::FailTransfer);
  Schedule(settings_.device_failures, &SimCluster::FailDevice);
  Schedule(settings_.zombies, &SimCluster::MakeZombie);
  Schedule(settings_.router_pauses, &SimCluster::PauseRouter);
  Schedule(settings_.duplicates, &SimCluster::DuplicateName);
  Schedule(settings_.half_opens, &SimCluster::HalfOpenLink);
  Schedule(settings_.lane_falls, &SimCluster::FallLane);
  Schedule(settings_.spoils, &SimCluster::SpoilWrite);
  Schedule(settings_.bad_steps, &SimCluster::AskForBadStep);
  Schedule(settings_.poison_alone ? 1 : settings_.poisons, &SimCluster::AskForEnd);
  ScheduleRoleChanges();
}

int SimCluster::RandomWorker() {
  std::vector<int> up;
  std::vector<int> busy;  // moving KV: where faults hurt most
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].worker == nullptr) continue;
    up.push_back(static_cast<int>(i));
    if (workers_[i].worker->InTransfer()) busy.push_back(static_cast<int>(i));
  }
  if (!busy.empty() && world_.Chance(0.7)) return busy[world_.random.Below(busy.size())];
  return up.empty() ? -1 : up[world_.random.Below(up.size())];
}

void SimCluster::CrashWorker() {
  const int index = RandomWorker();
  if (index < 0) return;
  const WorkerSlot& slot = workers_[static_cast<size_t>(index)];
  coverage_.Count(slot.prefill ? "prefill worker killed" : "decode worker killed");
  if (slot.worker->InTransfer()) {
    coverage_.Count(slot.prefill ? "prefill worker killed during transfer"
                                 : "decode worker killed during transfer");
  }
  KillWorker(index, "killed");
}

void SimCluster::KillWorker(int index, const std::string& why, int signal) {
  WorkerSlot& slot = workers_[static_cast<size_t>(index)];
  world_.Trace(slot.worker->process().name, why);
  Bury(std::move(slot.worker), world_.Chance(0.2) ? 1500 : 50);
  slot.last_exit.emplace().set_signal(signal);
  world_.After(world_.Ms(10, 1500), [this, index] {
    if (workers_[static_cast<size_t>(index)].worker == nullptr) StartWorker(index);
  });
}

void SimCluster::Bury(std::unique_ptr<SimWorker> worker, double notice_ms) {
  worker->Kill(notice_ms);
  // Destroyed later, when nothing of it is on the stack.
  world_.After(Duration{}, [dead = std::shared_ptr<SimWorker>(std::move(worker))] {});
}

void SimCluster::PauseWorker() {
  const int index = RandomWorker();
  if (index < 0) return;
  SimWorker& worker = *workers_[static_cast<size_t>(index)].worker;
  if (worker.process().paused()) return;
  const Duration time = world_.Chance(0.4) ? world_.Ms(1500, 5000) : world_.Ms(5, 800);
  world_.Trace(worker.process().name, fmt::format("stopped for {:.0f} ms", ToMs(time)));
  coverage_.Count(worker.prefill() ? "prefill worker stopped" : "decode worker stopped");
  if (worker.prefill() && worker.InTransfer())
    coverage_.Count("prefill worker stopped during transfer");
  if (worker.prefill() && worker.InTransfer() && time > settings_.lease) {
    coverage_.Count("prefill worker stopped during transfer beyond the lease");
  }
  const bool suspended = world_.Chance(settings_.suspend_chance);
  if (suspended) coverage_.Count("worker suspended");
  worker.Pause(suspended);
  const uint64_t incarnation = worker.incarnation();
  world_.After(time, [this, index, incarnation] {
    WorkerSlot& slot = workers_[static_cast<size_t>(index)];
    if (slot.worker == nullptr || slot.incarnation != incarnation) return;
    world_.Trace(slot.worker->process().name, "goes on");
    slot.worker->Resume();
  });
}

void SimCluster::BreakLink() {
  const bool kv = world_.Chance(0.6);
  if (kv ? kv_net_.BreakOne() : router_net_.BreakOne())
    coverage_.Count(kv ? "kv link broken" : "router link broken");
}

void SimCluster::FallLane() {
  SimFabric& fabric = settings_.falls_back && world_.Chance(0.5) ? fallback_ : fabric_;
  if (fabric.FallOneLane()) coverage_.Count("lane fell");
}

void SimCluster::SpoilWrite() {
  if (fabric_.SpoilOneWrite()) coverage_.Count("block spoiled on its way");
}

void SimCluster::HalfOpenLink() {
  const bool kv = world_.Chance(0.6);
  if (kv ? kv_net_.HalfOpenOne() : router_net_.HalfOpenOne())
    coverage_.Count(kv ? "kv link half open" : "router link half open");
}

void SimCluster::StallLink() {
  const Duration time = world_.Ms(5, 3000);
  if (world_.Chance(0.6) ? kv_net_.StallOne(time) : router_net_.StallOne(time))
    coverage_.Count("link stalled");
}

void SimCluster::DrainWorker() {
  const int index = RandomWorker();
  if (index < 0) return;
  WorkerSlot& slot = workers_[static_cast<size_t>(index)];
  world_.Trace(slot.worker->process().name, "is told to drain");
  coverage_.Count("drain");
  slot.worker->BeginDrain();
  AwaitDrained(index, slot.incarnation);
}

// A drained worker exits and another one is started in its place, as in a rolling update.
void SimCluster::AwaitDrained(int index, uint64_t incarnation) {
  world_.After(std::chrono::milliseconds(20), [this, index, incarnation] {
    WorkerSlot& slot = workers_[static_cast<size_t>(index)];
    if (slot.worker == nullptr || slot.incarnation != incarnation) return;
    if (!slot.worker->process().running() || !slot.worker->role().Drained())
      return AwaitDrained(index, incarnation);
    coverage_.Count("drained");
    KillWorker(index, "drained, exits", 0);
  });
}

// One worker after the other, each when the previous one's successor serves.
void SimCluster::RollingUpdate(size_t index) {
  if (index == workers_.size()) RollingRouterUpdate(0);
  if (faults_over_ || index >= workers_.size()) return;
  WorkerSlot& slot = workers_[index];
  world_.Trace(slot.worker->process().name, "is updated");
  coverage_.Count("rolling update of a worker");
  slot.worker->BeginDrain();
  AwaitDrained(static_cast<int>(index), slot.incarnation);
  AwaitUpdated(index, slot.starts + 1);
}

// Every router knows that it is ready, which may take a while.
bool SimCluster::Serves(const WorkerSlot& slot) const {
  if (slot.worker == nullptr || !slot.worker->role().Ready()) return false;
  return std::all_of(routers_.begin(), routers_.end(), [&](const auto& r) {
    if (r->router == nullptr) return true;
    const std::vector<WorkerStatus> known = r->router->Workers();
    return std::any_of(known.begin(), known.end(), [&](const WorkerStatus& status) {
      return status.incarnation == slot.incarnation &&
             status.role_epoch == slot.worker->roles().epoch() &&
             (status.state == WorkerStatus::State::kReady ||
              status.state == WorkerStatus::State::kParked);
    });
  });
}

void SimCluster::AwaitUpdated(size_t index, uint64_t starts) {
  world_.After(std::chrono::milliseconds(100), [this, index, starts] {
    const WorkerSlot& slot = workers_[index];
    if (slot.starts == starts && Serves(slot)) return RollingUpdate(index + 1);
    AwaitUpdated(index, starts);
  });
}

void SimCluster::CrashRouter() {
  const size_t index = world_.random.Below(routers_.size());
  RouterProcess& r = *routers_[index];
  if (r.router == nullptr) return;
  world_.Trace(r.process->name, "killed");
  coverage_.Count("router killed");
  DisconnectHttp(r, "its router died");
  r.process->Kill();
  router_net_.OnDeath(r.process.get(), 50);
  for (auto& [client, router] : clients_) {
    if (router.get() == &r && !client->done()) client->Leave("its router died");
  }
  r.Clear();
  world_.After(world_.Ms(50, 1500), [this, index] {
    if (routers_[index]->router == nullptr) StartRouter(static_cast<int>(index));
  });
}

void SimCluster::UpdateRouter() {
  ReplaceRouter(world_.random.Below(routers_.size()), [] {});
}

// A successor listens at the address as soon as the old router begins to drain, as on a shared
// socket.
void SimCluster::ReplaceRouter(size_t index, std::function<void()> then) {
  const std::shared_ptr<RouterProcess> old = routers_[index];
  if (old->router == nullptr || old->predecessor != nullptr || !old->process->running()) return;
  world_.Trace(old->process->name, "is replaced");
  coverage_.Count("router replaced");
  ++retiring_routers_;
  StartRouter(static_cast<int>(index));
  routers_[index]->predecessor = old;
  old->process->Deliver([old] { old->router->BeginDrain(); });
  AwaitRetired(index, old, std::move(then));
}

void SimCluster::AwaitRetired(size_t index, const std::shared_ptr<RouterProcess>& old,
                              std::function<void()> then) {
  world_.After(std::chrono::milliseconds(20), [this, index, old, then = std::move(then)] {
    RouterProcess& successor = *routers_[index];
    const bool taken_over = successor.predecessor != old || successor.router == nullptr ||
                            successor.router->Ready().has_value();
    const bool idle = old->router->Idle() && old->frontend->Idle();
    if (!taken_over || !idle) return AwaitRetired(index, old, then);
    world_.Trace(old->process->name, "has drained, exits");
    if (successor.predecessor == old) successor.predecessor = nullptr;
    old->process->Kill();
    router_net_.OnDeath(old->process.get(), 50);
    old->Clear();
    --retiring_routers_;
    coverage_.Count("router drained");
    then();
  });
}

void SimCluster::RollingRouterUpdate(size_t index) {
  if (faults_over_ || index >= routers_.size()) return;
  ReplaceRouter(index, [this, index] { RollingRouterUpdate(index + 1); });
}

void SimCluster::FailTransfer() {
  if (fabric_.FailOneWrite()) coverage_.Count("write failed");
}

void SimCluster::FailDevice() {
  const int index = RandomWorker();
  if (index < 0) return;
  SimWorker& worker = *workers_[static_cast<size_t>(index)].worker;
  world_.Trace(worker.process().name, "its device fails");
  coverage_.Count("device failed");
  worker.FailDevice();
  const uint64_t incarnation = worker.incarnation();
  // Its supervisor sees that it is not ready and replaces it.
  world_.After(world_.Ms(100, 1500), [this, index, incarnation] {
    WorkerSlot& slot = workers_[static_cast<size_t>(index)];
    if (slot.worker != nullptr && slot.incarnation == incarnation)
      KillWorker(index, "replaced after its device failed");
  });
}

// A worker that does not answer is considered dead and replaced under its name and address, as by a
// supervisor on another host. It is alive: later it resumes, finishes its writes, and reports under
// its old incarnation. Only its acknowledgement or its end may free the blocks granted to it.
void SimCluster::MakeZombie() {
  const int index = RandomWorker();
  if (index < 0) return;
  WorkerSlot& slot = workers_[static_cast<size_t>(index)];
  const std::string name = slot.worker->process().name;
  world_.Trace(name, "stops and is replaced");
  coverage_.Count("zombie");
  if (slot.worker->InTransfer()) coverage_.Count("zombie in transfer");
  slot.worker->Pause();
  slot.last_exit.reset();
  slot.disk.reset();  // still the old one's
  SimWorker* zombie = zombies_.emplace_back(std::move(slot.worker)).get();
  StartWorker(index);
  const auto is_it = [zombie](const auto& z) { return z.get() == zombie; };
  world_.After(world_.Ms(10, 2500), [this, is_it, zombie] {
    if (std::none_of(zombies_.begin(), zombies_.end(), is_it)) return;
    world_.Trace(zombie->process().name, "goes on, although replaced");
    zombie->Resume();
  });
  world_.After(world_.Ms(2500, 5000), [this, zombie] { EndZombie(zombie, "killed at last"); });
}

void SimCluster::DuplicateName() {
  const auto index = world_.random.Below(workers_.size());
  const WorkerSlot& slot = workers_[index];
  if (slot.worker == nullptr || !slot.worker->process().running()) return;
  coverage_.Count("duplicate name");
  SimWorker* twin =
      zombies_
          .emplace_back(std::make_unique<SimWorker>(
              shared_,
              SimIdentity{.name = slot.name,
                          .prefill = slot.prefill,
                          .incarnation = DrawIncarnation([this] { return world_.random.Next(); }),
                          .kv_address = slot.name + ":twin"}))
          .get();
  world_.Trace(twin->process().name, "starts under a name that is taken");
  twin->Start();
  world_.After(world_.Ms(300, 3000), [this, twin] { EndZombie(twin, "killed at last"); });
}

void SimCluster::EndZombie(const SimWorker* zombie, const std::string& why) {
  const auto it = std::find_if(zombies_.begin(), zombies_.end(),
                               [zombie](const auto& z) { return z.get() == zombie; });
  if (it == zombies_.end()) return;
  std::unique_ptr<SimWorker> dead = std::move(*it);
  zombies_.erase(it);
  world_.Trace(dead->process().name, why);
  Bury(std::move(dead), 50);
}

void SimCluster::OnStopWanted(SimWorker* worker) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].worker.get() != worker) continue;
    coverage_.Count("registered worker ousted");
    return KillWorker(static_cast<int>(i), "was ousted, exits");
  }
  coverage_.Count("zombie ousted");
  EndZombie(worker, "was ousted, exits");
}

void SimCluster::OnCrash(SimWorker* worker) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].worker.get() == worker)
      return KillWorker(static_cast<int>(i), "is gone by a request", 11);
  }
  EndZombie(worker, "is gone by a request");
}

void SimCluster::PauseRouter() {
  const size_t index = world_.random.Below(routers_.size());
  RouterProcess& r = *routers_[index];
  if (r.router == nullptr || !r.process->running()) return;
  const Duration time = FromMs(world_.Uniform(5, ToMs(kLongestRouterPause)));
  world_.Trace(r.process->name, fmt::format("stopped for {:.0f} ms", ToMs(time)));
  coverage_.Count("router stopped");
  if (world_.Chance(settings_.suspend_chance)) {
    coverage_.Count("router suspended");
    r.clock->Stop();
  }
  r.process->Pause();
  world_.After(time, [this, paused = routers_[index]] {
    world_.Trace(paused->process->name, "goes on");
    Resume(*paused);
  });
}

void SimCluster::Resume(RouterProcess& router) {
  router.clock->Go();
  router.process->Resume();
}

void SimCluster::Heal() {
  world_.Trace("cluster", "all faults are put right");
  faults_over_ = true;
  fabric_.set_connect_fail_chance(0);
  SetLinkRoom(SimSettings().link_room, SimSettings().link_bytes);
  for (size_t i = 0; i < routers_.size(); ++i) {
    Resume(*routers_[i]);
    if (routers_[i]->router == nullptr) StartRouter(static_cast<int>(i));
  }
  for (size_t i = 0; i < clients_.size(); ++i) {
    if (clients_[i].first->poisonous()) CancelRequest(i);
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].worker == nullptr) {
      StartWorker(static_cast<int>(i));
    } else {
      workers_[i].worker->Resume();
    }
    GoHome(i);
  }
}

}  // namespace aisp
