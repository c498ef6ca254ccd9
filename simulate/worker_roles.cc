// Role changes of a simulated worker, as in RoleSwitch (worker/role_switch.h).
#include <algorithm>

#include "simulate/worker.h"

namespace aisp::simulate {

void Worker::OnSetRole(const v1::SetRole& wanted) {
  v1::WorkerMessage message;
  v1::RoleAnswer& answer = *message.mutable_role_answer();
  answer.set_nonce(wanted.nonce());
  answer.set_role(role_);
  answer.set_role_epoch(role_epoch_);
  const bool as_expected =
      (wanted.expected_role() == v1::ROLE_UNSPECIFIED || wanted.expected_role() == role_) &&
      (wanted.expected_epoch() == 0 || wanted.expected_epoch() == role_epoch_) &&
      becoming_ == v1::ROLE_UNSPECIFIED;
  if (!as_expected) {
    answer.mutable_error()->set_code(static_cast<int>(Code::kFailedPrecondition));
    answer.mutable_error()->set_message("its role is not as expected");
  } else if (wanted.role() != role_) {
    becoming_ = wanted.role();
    move_at_ = world_->Now() + std::chrono::milliseconds(wanted.move_after_ms());
    give_up_at_ = world_->Now() + std::chrono::milliseconds(wanted.deadline_ms());
    ReportDraining(/*move=*/false, /*over=*/false);
    for (const Job& job : jobs_) {
      if (!job.started) RefuseJob(*job.decode, job.wire_id);
    }
    std::erase_if(jobs_, [](const Job& job) { return !job.started; });
    world_->RoleTimerAt(*this, std::min(move_at_, give_up_at_));
  }
  world_->SendToRouter(*this, std::move(message));
  MaybeRejoin();
}

void Worker::OnRoleTimer() {
  if (becoming_ == v1::ROLE_UNSPECIFIED) return;
  const Instant now = world_->Now();
  if (now >= give_up_at_) {
    becoming_ = v1::ROLE_UNSPECIFIED;
    ReportDraining(/*move=*/false, /*over=*/true);
    return;
  }
  if (now >= move_at_) {
    move_at_ = kNever;
    // Their next workers continue from these tokens.
    for (auto& [wire_id, sequence] : sequences_) {
      if (sequence->emitted < sequence->max_new) QueueTokens(*sequence);
    }
    SendTokens();
    ReportDraining(/*move=*/true, /*over=*/false);
  }
  world_->RoleTimerAt(*this, std::min(move_at_, give_up_at_));
}

void Worker::ReportDraining(bool move, bool over) {
  v1::WorkerMessage message;
  v1::Draining& draining = *message.mutable_draining();
  draining.set_move(move);
  draining.set_over(over);
  if (!over) {
    for (const uint64_t wire_id : waiting_) draining.add_not_started(wire_id);
    for (const uint64_t wire_id : awaiting_) {
      if (!Find(wire_id)->granted) draining.add_not_started(wire_id);
    }
  }
  world_->SendToRouter(*this, std::move(message));
}

void Worker::HandBack(uint64_t wire_id) {
  v1::WorkerMessage message;
  v1::TokenEvent& event = *message.mutable_tokens()->add_events();
  event.set_request_id(wire_id);
  event.set_finish(v1::FINISH_ERROR);
  event.set_handed_back(true);
  event.mutable_error()->set_code(static_cast<int>(Code::kUnavailable));
  event.mutable_error()->set_message("this worker drains");
  world_->SendToRouter(*this, std::move(message));
}

void Worker::MaybeRejoin() {
  if (becoming_ == v1::ROLE_UNSPECIFIED || step_.running || !sequences_.empty() || !jobs_.empty())
    return;
  role_ = becoming_;
  becoming_ = v1::ROLE_UNSPECIFIED;
  ++role_epoch_;
  world_->Rejoin(*this);
  // Its cache is unchanged.
  v1::RouterMessage snapshot;
  snapshot.mutable_kv_snapshot();
  OnRouterMessage(snapshot);
  SendTelemetry();
}

void Worker::RefuseJob(Worker& decode, uint64_t wire_id) {
  world_->JobRefusedAt(decode, wire_id, world_->Now() + FromMs(profile_.message_ms));
}

void Worker::OnJobRefused(uint64_t wire_id) {
  Sequence* sequence = Find(wire_id);
  if (sequence == nullptr || awaiting_.erase(wire_id) == 0) return;
  GiveBack(*sequence);
  sequence->granted = false;
  sequence->prefill = nullptr;
  Enqueue(*sequence);
  Plan();
}

}  // namespace aisp::simulate
