#include "worker/role_switch.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/check.h"
#include "common/log.h"
#include "proto/role.h"
#include "proto/wire_time.h"

namespace aisp {

// Forwards everything and records which role dialled.
class RoleSwitch::View final : public LinkDialer<v1::WorkerMessage> {
 public:
  View(RoleSwitch* owner, v1::Role role) : owner_(owner), role_(role) {}
  LinkId Dial(const std::string& address) override {
    const LinkId link = owner_->dialer_->Dial(address);
    owner_->dialled_[link] = role_;
    return link;
  }
  void Send(LinkId link, v1::WorkerMessage message) override {
    owner_->dialer_->Send(link, std::move(message));
  }
  Status Offer(LinkId link, v1::WorkerMessage message) override {
    return owner_->dialer_->Offer(link, std::move(message));
  }
  void Close(LinkId link) override {
    owner_->dialled_.erase(link);
    owner_->dialer_->Close(link);
  }

 private:
  RoleSwitch* const owner_;
  const v1::Role role_;
};

RoleSwitch::RoleSwitch(const Options& options, const Clock* clock)
    : options_(options), clock_(clock) {}
RoleSwitch::~RoleSwitch() = default;

LinkDialer<v1::WorkerMessage>* RoleSwitch::DialerOf(v1::Role role) {
  return views_.emplace_back(std::make_unique<View>(this, role)).get();
}

void RoleSwitch::Add(v1::Role role, WorkerRole* worker) { slots_.push_back({role, worker}); }

size_t RoleSwitch::SlotOf(v1::Role role) const {
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].role == role) return i;
  }
  return kNone;
}

WorkerRole* RoleSwitch::DialledBy(LinkId link) const {
  const auto it = dialled_.find(link);
  if (it == dialled_.end()) return nullptr;
  const size_t slot = SlotOf(it->second);
  return slot == kNone ? nullptr : slots_[slot].worker;
}

// --- changes ---

Status RoleSwitch::Change(const RoleChange& change) {
  const std::string_view is = RoleName(current());
  const size_t to = SlotOf(change.to);
  if (to == kNone) {
    return Fail(Code::kUnimplemented,
                fmt::format("worker {} is {} and cannot become {}; its process has no such role",
                            options_.worker_id, is, RoleName(change.to)));
  }
  if (staying_) {
    return Unavailable(fmt::format("worker {} drains for good and takes no other role; restart it",
                                   options_.worker_id));
  }
  if (change.expected != v1::ROLE_UNSPECIFIED && change.expected != current()) {
    return Fail(
        Code::kFailedPrecondition,
        fmt::format("worker {} is {} (epoch {}), expected was {}; look again and decide anew",
                    options_.worker_id, is, epoch_, RoleName(change.expected)));
  }
  if (change.expected_epoch != 0 && change.expected_epoch != epoch_) {
    return Fail(Code::kFailedPrecondition,
                fmt::format("worker {} is {} in epoch {}, expected was epoch {}; look again and "
                            "decide anew",
                            options_.worker_id, is, epoch_, change.expected_epoch));
  }
  if (to_ != kNone) {
    return Fail(Code::kAborted, fmt::format("worker {} is {} and becoming {} already; await that",
                                            options_.worker_id, is, RoleName(slots_[to_].role)));
  }
  if (to == active_) return {};
  LogInfo("a worker takes another role", {{"worker", options_.worker_id},
                                          {"from", is},
                                          {"to", RoleName(change.to)},
                                          {"epoch", epoch_}});
  to_ = to;
  began_ = clock_->Now();
  move_at_ = began_ + change.move_after;
  give_up_at_ = began_ + change.deadline;
  active().BeginDrain();
  return {};
}

void RoleSwitch::EndChange() {
  to_ = kNone;
  move_at_ = give_up_at_ = kNever;
}

void RoleSwitch::Settle() {
  if (to_ == kNone || !active().Drained()) return;
  active().StandBy();
  active_ = to_;
  ++epoch_;
  EndChange();
  LogInfo("the worker has another role", {{"worker", options_.worker_id},
                                          {"role", RoleName(current())},
                                          {"epoch", epoch_},
                                          {"ms", ToMs(clock_->Now() - began_)}});
  if (options_.on_role) options_.on_role(current());
  active().Activate(epoch_);
}

void RoleSwitch::OnSetRole(LinkId link, const v1::SetRole& wanted) {
  RoleChange change;
  change.to = wanted.role();
  change.expected = wanted.expected_role();
  change.expected_epoch = wanted.expected_epoch();
  change.move_after = MillisFromWire(wanted.move_after_ms());
  change.deadline = MillisFromWire(std::max<int64_t>(1, wanted.deadline_ms()));
  const v1::Role before = current();
  const uint64_t epoch = epoch_;
  const Status begun = Change(change);
  v1::WorkerMessage message;
  v1::RoleAnswer* answer = message.mutable_role_answer();
  answer->set_nonce(wanted.nonce());
  answer->set_role(before);
  answer->set_role_epoch(epoch);
  if (!begun) {
    answer->mutable_error()->set_code(static_cast<int>(begun.error().code));
    answer->mutable_error()->set_message(begun.error().message);
  }
  dialer_->Send(link, std::move(message));
}

void RoleSwitch::Stay() {
  if (std::exchange(staying_, true) || to_ == kNone) return;
  LogInfo("the worker drains for good; it takes no other role", {{"worker", options_.worker_id}});
  EndChange();
}

// --- the role ---

void RoleSwitch::Start() {
  AISP_CHECK(!slots_.empty());
  Activate(epoch_);
}

void RoleSwitch::Activate(uint64_t role_epoch) { active().Activate(role_epoch); }

void RoleSwitch::SetRouters(const std::vector<std::string>& addresses) {
  for (const Slot& slot : slots_) slot.worker->SetRouters(addresses);
}

void RoleSwitch::Launch() {
  active().Launch();
  Settle();
}

void RoleSwitch::Collect() {
  active().Collect();
  Settle();
}

void RoleSwitch::OnTransport() {
  for (const Slot& slot : slots_) slot.worker->OnTransport();
  Settle();
}

bool RoleSwitch::ExpectsSoon() const {
  return std::ranges::any_of(slots_, [](const Slot& slot) { return slot.worker->ExpectsSoon(); });
}

bool RoleSwitch::HasNotes() const {
  return std::ranges::any_of(slots_, [](const Slot& slot) { return slot.worker->HasNotes(); });
}

Instant RoleSwitch::NextTimer() const {
  Instant next = std::min(move_at_, give_up_at_);
  for (const Slot& slot : slots_) next = std::min(next, slot.worker->NextTimer());
  return next;
}

void RoleSwitch::OnTimer(Instant now) {
  for (const Slot& slot : slots_) {
    if (now >= slot.worker->NextTimer()) slot.worker->OnTimer(now);
  }
  Settle();
  if (now >= move_at_) {
    move_at_ = kNever;
    active().MoveStreams();
    Settle();
  }
  if (now < give_up_at_) return;
  LogWarning("the worker keeps its role: its work was not done in time",
             {{"worker", options_.worker_id},
              {"role", RoleName(current())},
              {"wanted", RoleName(slots_[to_].role)},
              {"ms", ToMs(now - began_)}});
  EndChange();
  ++called_off_;
  active().CallOffDrain();
}

void RoleSwitch::BeginDrain() {
  Stay();
  active().BeginDrain();
}

void RoleSwitch::MoveStreams() {
  Stay();
  active().MoveStreams();
}

void RoleSwitch::CallOffDrain() {
  staying_ = false;
  active().CallOffDrain();
}

void RoleSwitch::CloseLinks() {
  for (const Slot& slot : slots_) slot.worker->CloseLinks();
}

void RoleSwitch::OnLinkUp(LinkId link, const std::string& peer_address) {
  if (WorkerRole* role = DialledBy(link); role != nullptr) role->OnLinkUp(link, peer_address);
}

void RoleSwitch::OnMessage(LinkId link, v1::RouterMessage message) {
  WorkerRole* role = DialledBy(link);
  if (role == nullptr) return;
  if (message.has_set_role()) {
    OnSetRole(link, message.set_role());
  } else {
    if (message.has_drain() && role == &active()) Stay();
    role->OnMessage(link, std::move(message));
  }
  Settle();
}

void RoleSwitch::OnLinkDown(LinkId link, const Error& why) {
  WorkerRole* role = DialledBy(link);
  dialled_.erase(link);
  if (role != nullptr) role->OnLinkDown(link, why);
  Settle();
}

}  // namespace aisp
