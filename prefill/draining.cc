// Draining of a prefill worker: notifications, and when it is complete.
#include "common/log.h"
#include "prefill/prefill_role_impl.h"

namespace aisp {

void PrefillRole::Impl::NotifyReadersOfDrain(bool over) {
  std::vector<ReaderId> greeted;
  for (const auto& [id, reader] : readers.all()) {
    if (reader.up && reader.greeted) greeted.push_back(id);
  }
  for (const ReaderId id : greeted) {
    v1::PrefillToDecode message;
    message.mutable_draining()->set_over(over);
    SendToReader(id, std::move(message));
  }
}

void PrefillRole::Impl::BeginDrain() {
  if (!shell->BeginDrain()) return;
  for (const LinkId link : shell->AttachedLinks()) {
    v1::WorkerMessage message;
    message.mutable_draining();
    shell->Send(link, std::move(message));
  }
  NotifyReadersOfDrain(/*over=*/false);
  std::vector<TransferKey> queued;
  for (const auto& [key, transfer] : transfers) {
    if (transfer.gated()) queued.push_back(key);
  }
  for (const TransferKey key : queued) {
    FailTransfer(transfers.at(key),
                 Error{Code::kUnavailable, "this prefill worker is draining; use another"}, true);
  }
  NoteDrained();
}

bool PrefillRole::Impl::Drained() const {
  return shell->draining() && transfers.empty() && holder->size() == 0 && !deps.engine->InFlight();
}

void PrefillRole::Impl::NoteDrained() {
  if (told_drained || !Drained()) return;
  told_drained = true;
  LogInfo("drained", {{"worker", options.worker.worker_id}});
  shell->SetDrained(true);
  shell->Report();
}

}  // namespace aisp
