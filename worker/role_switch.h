// RoleSwitch: the roles of one worker process, one active at a time, over one engine: weights, KV
// pool and prefix cache stay when the role changes.
//
// A change is a compare-and-set: it begins only if role and epoch are as its sender expects and no
// other change is in progress. The role drains: no new work is placed here, and running streams
// end, or move to other workers after `move_after`. When it is drained it stands by, and the other
// role registers with every router under the next epoch. If it is not drained by `deadline`, the
// change is called off and the worker continues as before. A role that stands by still answers its
// peers, so that grants and acknowledgements are completed by protocol.
//
// Thread: the worker's engine thread, as for every role. All roles share one dialer to the routers,
// each through a view (DialerOf); callbacks go to the role that dialled.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/worker_role.h"

namespace aisp {

struct RoleChange {
  v1::Role to = v1::ROLE_UNSPECIFIED;
  v1::Role expected = v1::ROLE_UNSPECIFIED;  // UNSPECIFIED: any
  uint64_t expected_epoch = 0;               // 0: any
  Duration move_after{};
  Duration deadline = std::chrono::seconds(30);
};

class RoleSwitch final : public WorkerRole {
 public:
  struct Options {
    std::string worker_id;
    // Called when the worker's role has changed. May be empty.
    std::function<void(v1::Role)> on_role;
  };
  RoleSwitch(const Options& options, const Clock* clock);
  ~RoleSwitch() override;

  // Wiring: SetDialer once; then for each role DialerOf, wire it, Add. The first added role is the
  // initial one. Roles and dialer outlive this.
  void SetDialer(LinkDialer<v1::WorkerMessage>* dialer) { dialer_ = dialer; }
  LinkDialer<v1::WorkerMessage>* DialerOf(v1::Role role);
  void Add(v1::Role role, WorkerRole* worker);

  // OK: the change has begun, or the worker has that role already. FAILED_PRECONDITION: role or
  // epoch differ (names both); ABORTED: another change is in progress; UNIMPLEMENTED: this process
  // does not support that role; UNAVAILABLE: it is draining for good.
  Status Change(const RoleChange& change);
  v1::Role current() const { return slots_[active_].role; }
  uint64_t epoch() const { return epoch_; }
  bool changing() const { return to_ != kNone; }
  // Changes called off at their deadline.
  uint64_t called_off() const { return called_off_; }

  void Start() override;
  void SetRouters(const std::vector<std::string>& addresses) override;
  bool CanLaunch() const override { return active().CanLaunch(); }
  void Launch() override;
  bool InFlight() const override { return active().InFlight(); }
  bool StepDone() override { return active().StepDone(); }
  void Collect() override;
  void OnTransport() override;
  bool ExpectsSoon() const override;
  bool HasNotes() const override;
  Instant NextTimer() const override;
  void OnTimer(Instant now) override;
  // For good: a change in progress is dropped.
  void BeginDrain() override;
  void MoveStreams() override;
  bool Drained() const override { return staying_ && active().Drained(); }
  void CallOffDrain() override;
  void StandBy() override { active().StandBy(); }
  void Activate(uint64_t role_epoch) override;
  void CloseLinks() override;
  bool StopWanted() const override { return active().StopWanted(); }
  Status Ready() const override { return active().Ready(); }
  const Engine& engine() const override { return active().engine(); }

  void OnLinkUp(LinkId link, const std::string& peer_address) override;
  void OnMessage(LinkId link, v1::RouterMessage message) override;
  void OnLinkDown(LinkId link, const Error& why) override;

 private:
  class View;
  struct Slot {
    v1::Role role = v1::ROLE_UNSPECIFIED;
    WorkerRole* worker = nullptr;
  };
  static constexpr size_t kNone = SIZE_MAX;

  WorkerRole& active() { return *slots_[active_].worker; }
  const WorkerRole& active() const { return *slots_[active_].worker; }
  WorkerRole* DialledBy(LinkId link) const;
  size_t SlotOf(v1::Role role) const;
  // From now on it drains for good.
  void Stay();
  void OnSetRole(LinkId link, const v1::SetRole& wanted);
  // Called when the last work may have ended: activates the other role, if one is wanted.
  void Settle();
  void EndChange();

  const Options options_;
  const Clock* const clock_;
  LinkDialer<v1::WorkerMessage>* dialer_ = nullptr;
  std::vector<std::unique_ptr<View>> views_;
  std::vector<Slot> slots_;
  std::map<LinkId, v1::Role> dialled_;  // links that are up or being dialled, by role
  size_t active_ = 0;
  uint64_t epoch_ = 1;
  size_t to_ = kNone;
  Instant began_ = kNever;
  Instant move_at_ = kNever;
  Instant give_up_at_ = kNever;
  bool staying_ = false;
  uint64_t called_off_ = 0;
};

}  // namespace aisp
