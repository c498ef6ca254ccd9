#include "prefill/prefill_role.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "common/check.h"
#include "common/log.h"
#include "prefill/prefill_role_impl.h"

namespace aisp {

// --- transfers ---

Transfer* PrefillRole::Impl::FindTransfer(ReaderId reader, uint64_t transfer_id) {
  const auto it = by_wire_id.find({reader, transfer_id});
  return it == by_wire_id.end() ? nullptr : &transfers.at(it->second);
}

Transfer* PrefillRole::Impl::FindEpoch(const Reader& reader, Epoch epoch) {
  for (auto& [key, transfer] : transfers) {
    if (transfer.gated() || transfer.epoch != epoch) continue;
    const Reader* owner = readers.Find(transfer.reader);
    if (owner != nullptr && owner->Is(reader)) return &transfer;
  }
  return nullptr;
}

void PrefillRole::Impl::SendToReader(ReaderId id, v1::PrefillToDecode message) {
  const Reader* reader = readers.Find(id);
  if (reader != nullptr && reader->up) deps.readers->Send(reader->link, std::move(message));
}

void PrefillRole::Impl::SendFailed(ReaderId reader, uint64_t transfer_id, const Error& error,
                                   bool retryable) {
  transfers_failed.Add();
  v1::PrefillToDecode message;
  v1::PrefillFailed* failed = message.mutable_failed();
  failed->set_transfer_id(transfer_id);
  failed->mutable_error()->set_code(static_cast<int>(error.code));
  failed->mutable_error()->set_message(error.message);
  failed->mutable_error()->set_retryable(retryable);
  SendToReader(reader, std::move(message));
}

void PrefillRole::Impl::SendFence(ReaderId id, Epoch epoch) {
  const Reader* reader = readers.Find(id);
  if (reader == nullptr) return;
  // The link of the grant may be gone, and the same decode process connected on another one.
  const Reader* live = reader->up ? reader : readers.FindLive(*reader);
  if (live == nullptr) return;
  v1::PrefillToDecode message;
  message.mutable_fence()->set_epoch(epoch.value);
  deps.readers->Send(live->link, std::move(message));
}

void PrefillRole::Impl::AskForBlocks() {
  int64_t horizon = options.horizon_tokens;
  for (const auto& [key, transfer] : transfers) {
    // Transfers refused by a full reader must not hide others that could run.
    if (transfer.phase == TransferPhase::kRefused) horizon += transfer.tokens;
  }
  const auto capped = static_cast<int32_t>(std::min<int64_t>(horizon, INT32_MAX));
  std::vector<ReaderId> held_back;  // readers with a transfer that was overtaken often enough
  for (const SequenceId sequence : deps.engine->UpcomingGated(capped)) {
    const auto it = by_sequence.find(sequence);
    if (it == by_sequence.end()) continue;
    Transfer& transfer = transfers.at(it->second);
    if (std::find(held_back.begin(), held_back.end(), transfer.reader) != held_back.end()) continue;
    if (transfer.overtaken >= options.max_overtakes) held_back.push_back(transfer.reader);
    if (transfer.phase != TransferPhase::kQueued || transfer.fetch != 0) continue;
    transfer.phase = TransferPhase::kAsked;
    v1::PrefillToDecode message;
    message.mutable_need()->set_transfer_id(transfer.transfer_id);
    SendToReader(transfer.reader, std::move(message));
  }
}

void PrefillRole::Impl::NoteOvertaken(const Transfer& granted) {
  for (auto& [key, transfer] : transfers) {
    if (key >= granted.key) break;
    if (transfer.reader == granted.reader && transfer.gated() && transfer.refusals > 0)
      ++transfer.overtaken;
  }
}

void PrefillRole::Impl::StartPushing(Transfer& transfer) {
  if (transfer.first_token >= transfer.end_token) {
    // The reader has everything in its own cache: nothing to compute or send.
    transfer.computed = true;
    transfer.computed_at = transfer.granted;
    transfer.cached_tokens = transfer.end_token;
    return;
  }
  deps.engine->OpenGate(transfer.sequence);
  transfer.cached_tokens = deps.engine->ComputedTokens(transfer.sequence);
  PushEverything(transfer);
  if (transfer.cached_tokens >= transfer.end_token) {
    transfer.computed = true;
    transfer.computed_at = transfer.granted;
  }
}

void PrefillRole::Impl::PushEverything(Transfer& transfer) {
  const int32_t ready = deps.engine->ComputedTokens(transfer.sequence);
  const std::span<const BlockId> local = deps.engine->BlocksOf(transfer.sequence);
  pusher->ReadyAllLayers(transfer.push, ready, local);
}

void PrefillRole::Impl::OnLayer(int32_t layer, std::span<const LayerSlice> slices) {
  for (const LayerSlice& slice : slices) {
    const auto it = by_sequence.find(slice.sequence);
    if (it == by_sequence.end()) continue;  // cancelled during its last step
    const Transfer& transfer = transfers.at(it->second);
    if (transfer.phase != TransferPhase::kGranted) continue;
    pusher->Ready(transfer.push, layer, slice.token_end, slice.blocks);
  }
}

void PrefillRole::Impl::OnOutput(const TokenOutput& output) {
  const auto it = by_sequence.find(output.sequence);
  if (it == by_sequence.end()) return;
  Transfer& transfer = transfers.at(it->second);
  if (output.token >= 0) transfer.drawn = output;
  if (output.finish == FinishReason::kNone) return;
  transfer.sequence_alive = false;
  FailTransfer(transfer, output.error, MayRetry(output.fault));
}

void PrefillRole::Impl::OnComputed(SequenceId sequence) {
  const auto it = by_sequence.find(sequence);
  if (it == by_sequence.end()) return;
  Transfer& transfer = transfers.at(it->second);
  if (transfer.phase != TransferPhase::kGranted || transfer.computed) return;
  const SequenceTimes times = deps.engine->Times(sequence);
  transfer.computed = true;
  transfer.first_scheduled = times.first_scheduled;
  transfer.computed_at = times.prefill_done == kNever ? deps.clock->Now() : times.prefill_done;
  transfer.cached_tokens = times.cached_tokens;
  // After a preemption the rest may come from the cache, without running a layer.
  PushEverything(transfer);
  SettleTransfer(transfer);
}

void PrefillRole::Impl::Settle() {
  for (const PushId push : pusher->Progress(deps.connector->transports())) {
    if (holder->OnPush(push)) continue;
    const auto it = by_push.find(push);
    if (it != by_push.end()) SettleTransfer(transfers.at(it->second));
  }
  shell->SetTransferRate(pusher->BytesPerSecond());
}

void PrefillRole::Impl::SettleTransfer(Transfer& transfer) {
  if (transfer.phase == TransferPhase::kFencing) {
    if (!pusher->Idle(transfer.push)) return;
    SendFence(transfer.reader, transfer.epoch);
    EraseTransfer(transfer);
    return;
  }
  if (const Status& failure = pusher->Failure(transfer.push); !failure) {
    const Error error = failure.error();
    if (error.code == Code::kDeadlineExceeded) leases_expired.Add();
    if (error.code == Code::kUnavailable) {
      FailReader(transfer.reader, error);
    } else {
      FailTransfer(transfer, error, true);
    }
    return;
  }
  if (transfer.computed && pusher->Complete(transfer.push)) FinishTransfer(transfer);
}

void PrefillRole::Impl::FailTransfer(Transfer& transfer, const Error& error, bool retryable) {
  // A reader without room is no fault: the request waits at its decode worker.
  const bool expected = shell->draining() || error.code == Code::kResourceExhausted;
  Log(expected ? LogLevel::kInfo : LogLevel::kWarning, "prefill failed",
      {{"request", transfer.trace_id},
       {"transfer", transfer.transfer_id},
       {"error", error.message}});
  SendFailed(transfer.reader, transfer.transfer_id, error, retryable);
  Abandon(transfer);
}

void PrefillRole::Impl::FailReader(ReaderId id, const Error& error) {
  Reader* reader = readers.Find(id);
  AISP_CHECK(reader != nullptr);
  reader->closing = true;
  std::vector<TransferKey> keys;
  for (const auto& [key, transfer] : transfers) {
    if (transfer.reader == id && transfer.phase != TransferPhase::kFencing) keys.push_back(key);
  }
  for (const TransferKey key : keys) FailTransfer(transfers.at(key), error, true);
  holder->DropReader(id, &error);
  ReleaseIfIdle(id);
}

void PrefillRole::Impl::Abandon(Transfer& transfer) {
  AbandonFetch(transfer);
  if (transfer.sequence_alive) deps.engine->Cancel(transfer.sequence);
  transfer.sequence_alive = false;
  by_sequence.erase(transfer.sequence);
  if (transfer.gated()) {
    EraseTransfer(transfer);
    return;
  }
  transfer.phase = TransferPhase::kFencing;
  pusher->Stop(transfer.push);
  SettleTransfer(transfer);
}

void PrefillRole::Impl::EraseTransfer(Transfer& transfer) {
  const ReaderId reader_id = transfer.reader;
  if (!transfer.gated()) {
    by_push.erase(transfer.push);
    pusher->Close(transfer.push);
  }
  by_sequence.erase(transfer.sequence);
  by_wire_id.erase({reader_id, transfer.transfer_id});
  transfers.erase(TransferKey(transfer.key));
  OnTransferOver(reader_id);
}

void PrefillRole::Impl::OnTransferOver(ReaderId id) {
  Reader* reader = readers.Find(id);
  AISP_CHECK(reader != nullptr);
  --reader->transfers;
  if (!reader->up || reader->closing) ReleaseIfIdle(id);
}

void PrefillRole::Impl::OnEngineFailed(const Error& error) {
  std::vector<TransferKey> keys;
  for (const auto& [key, transfer] : transfers) {
    if (transfer.phase != TransferPhase::kFencing) keys.push_back(key);
  }
  for (const TransferKey key : keys) FailTransfer(transfers.at(key), error, true);
  holder->OnEngineFailed(error);
}

void PrefillRole::Impl::AfterStep() {
  if (const Status& failed = deps.engine->failed(); !failed) OnEngineFailed(failed.error());
  Settle();
  AskForBlocks();
  shell->PublishKvEvents();
  NoteDrained();
}

Instant PrefillRole::Impl::NextTimer() const {
  Instant next = std::min({shell->NextTimer(), pusher->NextTimer(), holder->NextTimer()});
  // During a step, Collect checks deadlines.
  if (!deps.engine->InFlight()) next = std::min(next, deps.engine->NextDeadline());
  for (const auto& [id, reader] : readers.all()) {
    if (reader.up) next = std::min(next, reader.hello_deadline);
  }
  for (const auto& [key, transfer] : transfers) {
    if (transfer.phase == TransferPhase::kFencing) continue;
    next = std::min(next, transfer.deadline);
    if (transfer.phase == TransferPhase::kRefused) next = std::min(next, transfer.retry_at);
    if (transfer.phase == TransferPhase::kGranted) next = std::min(next, transfer.lease_end);
  }
  return next;
}

void PrefillRole::Impl::OnTimer(Instant now) {
  shell->OnTimer(now);
  deps.engine->Expire(now);
  holder->OnTimer(now);
  std::vector<TransferKey> late;
  for (auto& [key, transfer] : transfers) {
    if (transfer.phase == TransferPhase::kFencing) continue;
    if (transfer.phase == TransferPhase::kRefused && now >= transfer.retry_at)
      transfer.phase = TransferPhase::kQueued;
    const bool expired = transfer.phase == TransferPhase::kGranted && now >= transfer.lease_end;
    if (expired || now >= transfer.deadline) late.push_back(key);
  }
  for (const TransferKey key : late) {
    Transfer& transfer = transfers.at(key);
    const bool lease = transfer.phase == TransferPhase::kGranted && now >= transfer.lease_end;
    if (lease) leases_expired.Add();
    FailTransfer(transfer,
                 Error{Code::kDeadlineExceeded,
                       lease ? "the lease ended before all KV was written"
                             : "the request's time was over before its prefill was done"},
                 lease);
  }
  std::vector<ReaderId> silent;
  for (const auto& [id, reader] : readers.all()) {
    if (reader.up && now >= reader.hello_deadline) silent.push_back(id);
  }
  for (const ReaderId id : silent) {
    Reader& reader = *readers.Find(id);
    deps.readers->Close(reader.link);
    reader.up = false;
    DropReader(reader);
  }
  Settle();
  AskForBlocks();
  NoteDrained();
}

// --- the role ---

PrefillRole::PrefillRole(const PrefillOptions& options) : impl_(std::make_unique<Impl>(options)) {}
PrefillRole::~PrefillRole() = default;

LayerSink* PrefillRole::layer_sink() { return impl_.get(); }
LinkHandler<v1::DecodeToPrefill>* PrefillRole::reader_links() { return impl_.get(); }

void PrefillRole::Wire(const PrefillDeps& deps) {
  AISP_CHECK(deps.engine != nullptr && deps.clock != nullptr && deps.routers != nullptr &&
             deps.readers != nullptr && deps.connector != nullptr);
  Impl& impl = *impl_;
  impl.deps = deps;
  WorkerShell::Profile profile;
  profile.role = v1::ROLE_PREFILL;
  for (const KvTransport* transport : deps.connector->transports()) {
    profile.transports.push_back(transport->capabilities().name);
  }
  profile.max_sequence_tokens = impl.options.max_sequence_tokens;
  profile.max_running = impl.options.max_running;
  profile.queued_prompts = [&impl] { return static_cast<uint32_t>(impl.transfers.size()); };
  impl.shell.emplace(impl.options.worker, profile, deps.engine, deps.clock, deps.routers,
                     deps.metrics);
  impl.pusher.emplace(&deps.engine->blocks(), deps.clock, deps.conversion_pool);
  impl.holder.emplace(impl.options.holder,
                      PrefixHolder::Deps{deps.engine, deps.clock, &*impl.pusher, &impl.readers,
                                         deps.host_pool, &impl});
  if (deps.metrics != nullptr)
    impl.holder->AddMetrics(*deps.metrics, {{"worker", impl.options.worker.worker_id}});
}

void PrefillRole::Start() { Activate(1); }
void PrefillRole::Activate(uint64_t role_epoch) {
  // A process that never takes this role shows none of its metrics.
  if (impl_->deps.metrics != nullptr && !std::exchange(impl_->metrics_added, true))
    impl_->AddMetrics(*impl_->deps.metrics);
  impl_->told_drained = impl_->stop_wanted = impl_->standing_by = false;
  impl_->shell->Activate(role_epoch);
  impl_->NotifyReadersOfDrain(/*over=*/true);
}
void PrefillRole::StandBy() {
  impl_->standing_by = true;
  impl_->shell->StandBy();
}
void PrefillRole::CallOffDrain() {
  impl_->told_drained = false;
  if (impl_->shell->CallOffDrain()) impl_->NotifyReadersOfDrain(/*over=*/true);
}
void PrefillRole::SetRouters(const std::vector<std::string>& addresses) {
  impl_->shell->SetRouters(addresses);
}

bool PrefillRole::CanLaunch() const { return impl_->deps.engine->CanLaunch(); }

void PrefillRole::Launch() {
  // A device error: engine().failed() keeps it, and AfterStep tells the readers.
  if (Status launched = impl_->deps.engine->Launch(); !launched) {
    LogError("step failed", {{"error", launched.error().message}});
  }
  impl_->AfterStep();
}

bool PrefillRole::InFlight() const { return impl_->deps.engine->InFlight(); }

bool PrefillRole::StepDone() { return impl_->deps.engine->StepDone(); }
void PrefillRole::Collect() {
  Impl& impl = *impl_;
  const CollectOutput out = impl.deps.engine->Collect();
  for (const TokenOutput& output : out.tokens) impl.OnOutput(output);
  for (const SequenceId sequence : out.prefills_done) impl.OnComputed(sequence);
  impl.shell->RecordStep(out.timing);
  impl.AfterStep();
}

void PrefillRole::OnTransport() {
  impl_->deps.engine->PollTiers();
  impl_->holder->OnTiers();
  impl_->Settle();
  impl_->AskForBlocks();
  impl_->NoteDrained();
}

bool PrefillRole::ExpectsSoon() const { return impl_->pusher->ExpectsSoon(); }

Instant PrefillRole::NextTimer() const { return impl_->NextTimer(); }
void PrefillRole::OnTimer(Instant now) { impl_->OnTimer(now); }
void PrefillRole::BeginDrain() { impl_->BeginDrain(); }
bool PrefillRole::Drained() const { return impl_->Drained(); }
void PrefillRole::CloseLinks() { impl_->shell->CloseLinks(); }
bool PrefillRole::StopWanted() const {
  return !impl_->shell->Ousted() || (impl_->stop_wanted && impl_->Drained());
}
Status PrefillRole::Ready() const { return impl_->shell->Ready(); }
const Engine& PrefillRole::engine() const { return *impl_->deps.engine; }
size_t PrefillRole::num_transfers() const { return impl_->transfers.size(); }
size_t PrefillRole::num_pushes() const { return impl_->holder->size(); }
uint64_t PrefillRole::prefixes_promoted() const { return impl_->holder->promoted(); }
int32_t PrefillRole::staging_blocks() const { return impl_->pusher->staging().blocks(); }
int32_t PrefillRole::most_staging_blocks() const { return impl_->pusher->staging().most_blocks(); }

void PrefillRole::OnLinkUp(LinkId link, const std::string& /*peer_address*/) {
  impl_->shell->OnLinkUp(link);
}

void PrefillRole::OnMessage(LinkId link, v1::RouterMessage message) {
  if (impl_->shell->OnMessage(link, message)) return;
  if (message.body_case() != v1::RouterMessage::kDrain || !impl_->shell->Attached(link)) return;
  impl_->stop_wanted = impl_->stop_wanted || message.drain().stop();
  BeginDrain();
}

void PrefillRole::OnLinkDown(LinkId link, const Error& why) {
  // Transfers belong to decode workers, so losing a router ends none of them.
  impl_->shell->OnLinkDown(link, why);
}

}  // namespace aisp
