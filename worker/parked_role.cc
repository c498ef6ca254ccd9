#include "worker/parked_role.h"

#include <utility>

namespace aisp {

void ParkedRole::Wire(Engine* engine, const Clock* clock, LinkDialer<v1::WorkerMessage>* routers) {
  engine_ = engine;
  WorkerShell::Profile profile;
  profile.role = v1::ROLE_PARKED;
  // Without metrics: those of the role that it works in cover the engine.
  shell_.emplace(options_, profile, engine, clock, routers, nullptr);
}

void ParkedRole::Activate(uint64_t role_epoch) {
  stop_wanted_ = false;
  shell_->Activate(role_epoch);
}

void ParkedRole::BeginDrain() {
  if (!shell_->BeginDrain()) return;
  for (const LinkId link : shell_->AttachedLinks()) {
    v1::WorkerMessage message;
    message.mutable_draining();
    shell_->Send(link, std::move(message));
  }
  shell_->SetDrained(true);
  shell_->Report();
}

void ParkedRole::OnMessage(LinkId link, v1::RouterMessage message) {
  if (shell_->OnMessage(link, message) || !shell_->Attached(link)) return;
  if (message.has_drain()) {
    stop_wanted_ = stop_wanted_ || message.drain().stop();
    return BeginDrain();
  }
  if (!message.has_generate()) return;
  // Sent before the router knew of the new role.
  v1::WorkerMessage answer;
  v1::TokenEvent* event = answer.mutable_tokens()->add_events();
  event->set_request_id(message.generate().request_id());
  event->set_finish(v1::FINISH_ERROR);
  event->set_handed_back(true);
  event->mutable_error()->set_code(static_cast<int>(Code::kUnavailable));
  event->mutable_error()->set_message("this worker is parked; use another");
  shell_->Send(link, std::move(answer));
}

}  // namespace aisp
