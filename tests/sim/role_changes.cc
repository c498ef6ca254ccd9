// Workers change roles while the cluster serves and faults happen.
#include <algorithm>

#include <fmt/format.h>

#include "proto/role.h"
#include "tests/sim/cluster.h"

namespace aisp {
namespace {

constexpr v1::Role kRoles[] = {v1::ROLE_PREFILL, v1::ROLE_DECODE, v1::ROLE_PARKED};

}  // namespace

void SimCluster::ScheduleRoleChanges() {
  if (!settings_.calm) return Schedule(settings_.role_changes, &SimCluster::ChangeRole);
  if (settings_.role_changes == 0) return;
  world_.After(std::chrono::milliseconds(700),
               [this] { ChangeRolesInTurn(static_cast<int>(settings_.role_changes) + 1); });
}

void SimCluster::AskForRole(size_t index, const RoleWish& wish) {
  const WorkerSlot& slot = workers_[index];
  const RouterProcess& r = *routers_[world_.random.Below(routers_.size())];
  if (r.router == nullptr) return;
  world_.Trace(slot.name, fmt::format("shall become {}", RoleName(wish.to)));
  r.process->Deliver([this, router = r.router.get(), name = slot.name, wish] {
    router->SetWorkerRole(name, wish, [this](const Result<Router::RoleState>& begun) {
      if (begun) return coverage_.Count("role change begun");
      const std::string& why = begun.error().message;
      if (why.find("last decode worker") != std::string::npos)
        coverage_.Count("role change of the last decode worker refused");
      if (why.find("expected was") != std::string::npos)
        coverage_.Count("role change refused: not as expected");
      if (begun.error().code == Code::kAborted) coverage_.Count("role change during another");
      if (begun.error().code == Code::kUnavailable)
        coverage_.Count("role change without an answer");
    });
  });
}

void SimCluster::ChangeRole() {
  const int index = RandomWorker();
  if (index < 0) return;
  SimWorker& worker = *workers_[static_cast<size_t>(index)].worker;
  RoleWish wish;
  wish.to = kRoles[world_.random.Below(3)];
  wish.expected = world_.Chance(0.5)   ? v1::ROLE_UNSPECIFIED
                  : world_.Chance(0.8) ? worker.roles().current()
                                       : kRoles[world_.random.Below(3)];
  wish.expected_epoch = world_.Chance(0.2) ? 1 : 0;
  wish.move_after = world_.Chance(0.3) ? Duration{} : world_.Ms(1, 1000);
  wish.deadline = settings_.role_deadline;
  if (worker.InTransfer()) coverage_.Count("role change during transfer");
  // Sometimes twice, as by two planners.
  for (int i = world_.Chance(0.3) ? 2 : 1; i > 0; --i) AskForRole(static_cast<size_t>(index), wish);
}

void SimCluster::ChangeRolesInTurn(int left) {
  if (faults_over_ || left == 0) return;
  const bool settled =
      std::all_of(workers_.begin(), workers_.end(), [this](const WorkerSlot& slot) {
        return slot.worker != nullptr && !slot.worker->roles().changing() && Serves(slot);
      });
  if (settled) {
    const size_t index = world_.random.Below(workers_.size());
    RoleWish wish;
    wish.to = kRoles[world_.random.Below(3)];
    wish.expected = workers_[index].worker->roles().current();
    wish.move_after = world_.Chance(0.5) ? Duration{} : world_.Ms(1, 300);
    wish.deadline = settings_.role_deadline;
    if (wish.to != wish.expected) {
      coverage_.Count("role change that nobody may notice");
      AskForRole(index, wish);
      --left;
    }
  }
  world_.After(world_.Ms(50, 400), [this, left] { ChangeRolesInTurn(left); });
}

void SimCluster::GoHome(size_t index) {
  const WorkerSlot& slot = workers_[index];
  const v1::Role home = slot.prefill ? v1::ROLE_PREFILL : v1::ROLE_DECODE;
  // It may be the last worker that decodes.
  const bool can_go = std::any_of(workers_.begin(), workers_.end(), [&](const WorkerSlot& other) {
    return &other != &slot && other.worker != nullptr && !other.worker->roles().changing() &&
           other.worker->roles().current() == v1::ROLE_DECODE && Serves(other);
  });
  if ((can_go || home == v1::ROLE_DECODE) && slot.worker != nullptr &&
      slot.worker->process().running() && slot.worker->roles().current() != home &&
      !slot.worker->roles().changing()) {
    slot.worker->process().Deliver([roles = &slot.worker->roles(), home] {
      RoleChange change;
      change.to = home;
      change.deadline = std::chrono::seconds(5);
      static_cast<void>(roles->Change(change));
    });
  }
  world_.After(std::chrono::milliseconds(100), [this, index] { GoHome(index); });
}

}  // namespace aisp
