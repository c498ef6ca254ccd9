// Draining of a decode worker: reports, and when it is complete.
#include <map>

#include "common/log.h"
#include "decode/decode_role_impl.h"

namespace aisp {

// Nothing was computed for it, and nobody writes for it.
bool DecodeRole::Impl::NotStarted(const DecodeRequest& request) const {
  if (request.phase == RequestPhase::kPulling || request.phase == RequestPhase::kDialling ||
      request.phase == RequestPhase::kRequested)
    return true;
  return request.phase == RequestPhase::kRunning && !request.filled &&
         deps.engine->Times(request.sequence).first_scheduled == kNever;
}

void DecodeRole::Impl::ReportDraining(bool move) {
  std::map<LinkId, v1::WorkerMessage> messages;
  for (const LinkId link : shell->AttachedLinks())
    messages[link].mutable_draining()->set_move(move);
  for (const auto& [key, request] : requests) {
    if (!NotStarted(request)) continue;
    for (const auto& [router, id] : request.readers) {
      const auto it = messages.find(router);
      if (it != messages.end()) it->second.mutable_draining()->add_not_started(id);
    }
  }
  for (const auto& [id, waits] : unguided) {
    const auto it = messages.find(id.first);
    if (it != messages.end()) it->second.mutable_draining()->add_not_started(id.second);
  }
  for (auto& [link, message] : messages) shell->Send(link, std::move(message));
}

bool DecodeRole::Impl::Drained() const {
  return shell->draining() && requests.empty() && unguided.empty() && !deps.engine->InFlight();
}

void DecodeRole::Impl::NoteDrained() {
  if (told_drained || !Drained()) return;
  told_drained = true;
  LogInfo("drained", {{"worker", options.worker.worker_id}});
  shell->SetDrained(true);
  shell->Report();
}

}  // namespace aisp
