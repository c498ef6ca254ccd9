// RoleSwitch: the roles of one worker process, of which it has one at a time, over one engine: the
// weights, the KV pool and its prefix cache stay when it takes another role.
//
// A change is a compare-and-set: it begins only where role and epoch are as its sender expects and
// no other change is under way. The role drains: nothing new is placed here, running streams end,
// or after `move_after` go to other workers. When nothing is left it stands by and the other one
// registers with every router, under the next epoch. What is not drained by `deadline` is called
// off: the worker goes on as it was. A role that stands by still answers its peers, so that grants
// and acknowledgements are settled by protocol whatever the process does meanwhile.
//
// Thread: the worker's engine thread, as every role. All roles share one dialer to the routers, of
// which each gets a view (DialerOf); an answer goes to the role that dialled.
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
    // The worker has another role from now on. May be empty.
    std::function<void(v1::Role)> on_role;
  };
  RoleSwitch(const Options& options, const Clock* clock);
  ~RoleSwitch() override;

  // Wiring: SetDialer once; then for each role DialerOf, wire it, Add. The first added is the one
  // that the worker begins with. Roles and dialer outlive this.
  void SetDialer(LinkDialer<v1::WorkerMessage>* dialer) { dialer_ = dialer; }
  LinkDialer<v1::WorkerMessage>* DialerOf(v1::Role role);
  void Add(v1::Role role, WorkerRole* worker);

  // OK: it has begun, or the worker has that role already. FAILED_PRECONDITION names what was
  // expected and what is; ABORTED: another change is under way; UNIMPLEMENTED: this process cannot
  // take that role; UNAVAILABLE: it drains for good.
  Status Change(const RoleChange& change);
  v1::Role current() const { return slots_[active_].role; }
  uint64_t epoch() const { return epoch_; }
  bool changing() const { return to_ != kNone; }
  // Changes that were called off at their deadline.
  uint64_t called_off() const { return called_off_; }

  void Start() override;
  void SetRouters(const std::vector<std::string>& addresses) override;
  bool CanLaunch() const override { return active().CanLaunch(); }
  void Launch() override;
  bool InFlight() const override { return active().InFlight(); }
  bool StepDone() override { return active().StepDone(); }
  void Collect() override;
  void OnTransport() override;
  Instant NextTimer() const override;
  void OnTimer(Instant now) override;
  // For good: a change that was under way is not made.
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
  // Drains for good from now on.
  void Stay();
  void OnSetRole(LinkId link, const v1::SetRole& wanted);
  // After whatever may have ended the last of the work: the other role, where one is wanted.
  void Settle();
  void EndChange();

  const Options options_;
  const Clock* const clock_;
  LinkDialer<v1::WorkerMessage>* dialer_ = nullptr;
  std::vector<std::unique_ptr<View>> views_;
  std::vector<Slot> slots_;
  std::map<LinkId, v1::Role> dialled_;  // links that are up or under way, by who dialled them
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
