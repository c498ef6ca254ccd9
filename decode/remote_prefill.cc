// Requests of a decode worker to prefill workers, and their answers.
#include <algorithm>

#include <fmt/format.h>

#include "common/log.h"
#include "decode/decode_role_impl.h"
#include "decode/first_token.h"
#include "decode/granted_blocks.h"
#include "proto/reported_timing.h"
#include "worker/feature_codec.h"
#include "worker/sampling_codec.h"

namespace aisp {
namespace {

constexpr int kMostNotes = 64;  // handled at a time, of one lane

}  // namespace

DecodeRequest* DecodeRole::Impl::FindTransfer(const std::string& address, uint64_t transfer_id) {
  const auto it = by_transfer.find(transfer_id);
  if (it == by_transfer.end()) return nullptr;
  DecodeRequest& request = requests.at(it->second);
  return request.address == address ? &request : nullptr;
}

void DecodeRole::Impl::StartRemote(DecodeRequest& request) {
  const Instant now = deps.clock->Now();
  while (request.next_target < request.targets.size()) {
    const std::string& address = request.targets[request.next_target++];
    if (leases.Silent(address, now, options.fence_grace)) {
      request.fallback = fmt::format("{} owes an acknowledgement", address);
      continue;
    }
    if (Status wanted = peers->Want(address); !wanted) {
      request.fallback = wanted.error().message;
      LogDebug("prefill worker passed over",
               {{"request", request.trace_id}, {"error", wanted.error().message}});
      continue;
    }
    request.address = address;
    request.phase = RequestPhase::kDialling;
    request.began = now;
    if (peers->Up(address) != nullptr) Ask(request);
    return;
  }
  request.phase = RequestPhase::kRunning;
  request.address.clear();
  local_fallbacks.Add();
  deps.engine->RemoteFailed(request.sequence, /*run_locally=*/true);
}

void DecodeRole::Impl::Ask(DecodeRequest& request) {
  const Instant now = deps.clock->Now();
  request.phase = RequestPhase::kRequested;
  request.granted_early = false;
  request.transfer_id = ++last_transfer;
  request.silent_at = now + options.prefill_silence_limit;
  request.remote.asked = now;
  by_transfer[request.transfer_id] = request.key;
  v1::PrefillRequest prefill = request.prefill;
  // The pull was meant for the first target only.
  request.prefill.clear_pull();
  prefill.set_transfer_id(request.transfer_id);
  request.draw_asked = request.draw && peers->Up(request.address)->draws;
  if (request.draw_asked) *prefill.mutable_draw() = *request.draw;
  request.features_asked = deps.engine->FeatureWindow(request.sequence);
  if (request.features_asked > 0) {
    *prefill.mutable_features() = FeaturesWantedOf(request.features_asked, options.feature_layers,
                                                   deps.engine->FeatureSize());
  }
  prefill.set_decode_match_tokens(static_cast<uint32_t>(deps.engine->LocalMatch(request.sequence)));
  // Rounded up, since 0 means the prefill worker's default.
  prefill.set_timeout_ms(std::max<int64_t>(1, (request.deadline - now).count() / 1'000'000));
  GrantEarly(request, &prefill);
  if (Status sent = SendPrefill(request, std::move(prefill)); !sent) {
    // It was not sent.
    by_transfer.erase(std::exchange(request.transfer_id, 0));
    FailRemote(request, sent.error().message, /*expected=*/true);
    return;
  }
  NoteAsked(request);
}

Status DecodeRole::Impl::SendPrefill(DecodeRequest& request, v1::PrefillRequest prefill) {
  v1::DecodeToPrefill message;
  if (request.shares_prompt) {
    const SharedPromptsOut::Use use = prompts_out[request.address].Take(request.prompt);
    request.prompt_id = use.id;
    if (use.first) {
      *message.mutable_shared_prompt() = SharedPromptsOut::MakeMessage(use.id, request.prompt);
      if (Status sent = peers->Offer(request.address, std::move(message)); !sent) {
        prompts_out[request.address].Release(std::exchange(request.prompt_id, 0));
        return sent;
      }
      message.Clear();
    }
    prefill.set_prompt_id(use.id);
  } else {
    prefill.mutable_tokens()->Add(request.prompt.begin(), request.prompt.end());
  }
  prefill.mutable_tokens()->Add(request.rest.begin(), request.rest.end());
  *message.mutable_prefill() = std::move(prefill);
  Status sent = peers->Offer(request.address, std::move(message));
  if (!sent) ReleasePrompt(request);
  return sent;
}

void DecodeRole::Impl::ReleasePrompt(DecodeRequest& request) {
  const uint64_t id = std::exchange(request.prompt_id, 0);
  const auto told = prompts_out.find(request.address);
  if (id == 0 || told == prompts_out.end() || !told->second.Release(id)) return;
  v1::DecodeToPrefill message;
  message.mutable_drop_prompt()->set_prompt_id(id);
  peers->Send(request.address, std::move(message));
}

void DecodeRole::Impl::OnSessionUp(const std::string& address) {
  puller->OnSessionUp(address);
  for (auto& [key, request] : requests) {
    if (request.phase == RequestPhase::kDialling && request.address == address) Ask(request);
  }
  for (const Epoch epoch : leases.Revoked()) {
    const Lease& lease = *leases.Find(epoch);
    if (lease.writer.address == address) SendRevoke(lease);
  }
}

void DecodeRole::Impl::OnMessage(LinkId link, v1::PrefillToDecode message) {
  peers->OnMessage(link, message);
}

void DecodeRole::Impl::OnPeer(const std::string& address, const v1::PrefillToDecode& message) {
  speakers[address] = {.last = deps.clock->Now(), .warned = false};
  if (puller->OnPeer(address, message)) {
    // The step that waits for a prefix goes first; Launch publishes after it.
    if (!deps.engine->CanLaunch()) shell->PublishKvEvents();
    return;
  }
  switch (message.body_case()) {
    case v1::PrefillToDecode::kNeed:
      OnNeed(address, message.need().transfer_id());
      break;
    case v1::PrefillToDecode::kDone:
      OnDone(address, message.done());
      break;
    case v1::PrefillToDecode::kFailed:
      OnFailed(address, message.failed());
      break;
    case v1::PrefillToDecode::kFence:
      OnFence(address, Epoch(message.fence().epoch()));
      break;
    default:
      break;  // a newer peer's message; unknown ones are ignored
  }
  shell->PublishKvEvents();
}

bool DecodeRole::Impl::HasNotes() const {
  return std::ranges::any_of(deps.transports, [](KvTransport* lane) { return lane->HasNotes(); });
}

void DecodeRole::Impl::TakeNotes() {
  std::string token, note;
  for (KvTransport* lane : deps.transports) {
    // At most one turn's worth: a writer may leave notes as fast as they are taken.
    for (int i = 0; i < kMostNotes && lane->TakeNote(&token, &note); ++i) {
      v1::PrefillToDecode message;
      if (!message.ParseFromString(note) || !message.has_done()) continue;
      notes_taken.Add();
      peers->OnNote(lane, token, message);
    }
  }
}

bool DecodeRole::Impl::OverCap(const std::string& address, int32_t wanted_blocks) const {
  const int32_t total = deps.engine->blocks().layout().num_blocks;
  const int32_t cap =
      options.max_granted_blocks_per_peer > 0 ? options.max_granted_blocks_per_peer : total / 2;
  const int32_t out = leases.BlocksOut(address);
  if (out > 0 && out + wanted_blocks > cap) return true;
  // Over all writers, at most half of the pool may be in revoked leases.
  return leases.BlocksRevoked() > 0 && leases.BlocksRevoked() + wanted_blocks > total / 2;
}

Duration DecodeRole::Impl::LeaseFor(int32_t tokens) const {
  return options.lease_base + options.lease_per_1k_tokens * tokens / 1000;
}

void DecodeRole::Impl::RefuseGrant(DecodeRequest& request) {
  grants_refused.Add();
  request.silent_at = deps.clock->Now() + options.prefill_silence_limit;
  v1::DecodeToPrefill message;
  message.mutable_refused()->set_transfer_id(request.transfer_id);
  message.mutable_refused()->set_retry_after_ms(options.refused_retry_hint.count() / 1'000'000);
  peers->Send(request.address, std::move(message));
}

Result<RemoteGrant> DecodeRole::Impl::TakeGrant(DecodeRequest& request) {
  Engine& engine = *deps.engine;
  const KvLayout& layout = engine.blocks().layout();
  const int32_t match = engine.LocalMatch(request.sequence);
  const int32_t wanted = layout.BlocksFor(request.tokens()) - match / layout.block_tokens;
  if (leases.Silent(request.address, deps.clock->Now(), options.fence_grace) ||
      OverCap(request.address, wanted)) {
    return ResourceExhausted("its prefill worker has as many blocks as it may have");
  }
  return engine.GrantRemote(request.sequence, request.draw_asked);
}

void DecodeRole::Impl::GrantEarly(DecodeRequest& request, v1::PrefillRequest* prefill) {
  if (!peers->Up(request.address)->takes_grants || prefill->has_pull()) return;
  for (const auto& [transfer, key] : by_transfer) {
    if (key != request.key && requests.at(key).address == request.address) return;
  }
  // What is cached here meanwhile ends the attempt when blocks are asked for.
  if (deps.engine->LocalMatch(request.sequence) >= request.tokens() - 1) return;
  const Result<RemoteGrant> grant = TakeGrant(request);
  if (!grant) return;
  *prefill->mutable_grant() = OpenGrant(request, *grant);
  request.granted_early = true;
}

void DecodeRole::Impl::TakeBackGrant(DecodeRequest& request) {
  deps.engine->RemoteFailed(request.sequence, /*run_locally=*/false);
  request.granted_early = false;
  request.phase = RequestPhase::kRequested;
  request.silent_at = deps.clock->Now() + options.prefill_silence_limit;
}

void DecodeRole::Impl::OnNeed(const std::string& address, uint64_t transfer_id) {
  DecodeRequest* request = FindTransfer(address, transfer_id);
  if (request == nullptr) {
    // Cancelled just before; repeated so that the prefill worker does not wait for an answer.
    v1::DecodeToPrefill message;
    message.mutable_cancel()->set_transfer_id(transfer_id);
    peers->Send(address, std::move(message));
    return;
  }
  if (request->phase != RequestPhase::kRequested) return;  // a repeated message
  const Result<RemoteGrant> grant = TakeGrant(*request);
  if (!grant && grant.error().code == Code::kResourceExhausted) {
    RefuseGrant(*request);
    return;
  }
  if (!grant) {
    FailRemote(*request, grant.error().message);
    return;
  }
  if (grant->first_token >= request->tokens() - 1) {
    // Another sequence filled our cache meanwhile. Nobody got the epoch.
    EndAttempt(*request);
    request->phase = RequestPhase::kRunning;
    request->fallback = "the KV of the prompt came into this worker's own cache meanwhile";
    deps.engine->RemoteFilled(request->sequence);
    return;
  }
  v1::DecodeToPrefill message;
  *message.mutable_grant() = OpenGrant(*request, *grant);
  peers->Send(address, std::move(message));
}

v1::Grant DecodeRole::Impl::OpenGrant(DecodeRequest& request, const RemoteGrant& grant) {
  const Writer& writer = *peers->Up(request.address);
  const KvLayout& layout = deps.engine->blocks().layout();
  const int32_t tokens = request.kv_end() - grant.first_token;
  const Duration lease = LeaseFor(request.tokens());
  request.phase = RequestPhase::kGranted;
  request.epoch = grant.epoch;
  request.first_token = grant.first_token;
  request.lease_end = deps.clock->Now() + lease;
  leases.Open({.epoch = grant.epoch,
               .writer = writer,
               .blocks = static_cast<int32_t>(grant.blocks.size()),
               .transfer_id = request.transfer_id,
               .revoked = false,
               .revoked_at = kNever});
  grants.Add();

  // If the first token is not drawn there and the last prompt token starts a block, we write that
  // block ourselves.
  const auto written = static_cast<size_t>(layout.BlocksFor(tokens));
  AllowWrites(layout, std::span(grant.blocks).first(written), grant.epoch, writer.transport);

  v1::Grant wire;
  wire.set_transfer_id(request.transfer_id);
  wire.set_epoch(grant.epoch.value);
  wire.set_first_token(static_cast<uint32_t>(grant.first_token));
  for (const BlockId block : std::span(grant.blocks).first(written)) wire.add_blocks(block.value);
  wire.set_lease_ms(lease.count() / 1'000'000);
  return wire;
}

Status DecodeRole::Impl::Verify(const DecodeRequest& request, const v1::PrefillDone& done) {
  // No checks: an older writer, or one whose host cannot read its pool.
  if (deps.host_pool == nullptr || done.block_checks().empty()) return {};
  const KvLayout& layout = deps.engine->blocks().layout();
  const int32_t tokens = request.kv_end() - request.first_token;
  const auto pushed = static_cast<size_t>(layout.BlocksFor(tokens));
  const auto first = static_cast<size_t>(request.first_token / layout.block_tokens);
  const std::span<const BlockId> blocks = deps.engine->BlocksOf(request.sequence);
  // The sequence has just timed out.
  if (blocks.empty()) return {};
  const bool converted = !leases.Find(request.epoch)->writer.conversion.empty();
  Status arrived =
      CheckArrived(layout, deps.host_pool, {blocks.subspan(first, pushed), tokens, converted},
                   done.block_checks());
  arrived ? verified.Add(static_cast<double>(pushed)) : corrupt.Add();
  return arrived;
}

Result<std::optional<SampledToken>> DecodeRole::Impl::TakeDrawn(const DecodeRequest& request,
                                                                const v1::PrefillDone& done) const {
  // A token that was not requested: its KV was not granted.
  if (!request.draw_asked || !done.has_drawn()) return std::nullopt;
  const int64_t generated = int64_t{request.tokens()} - int64_t{request.draw->prompt_tokens()};
  AISP_RETURN_IF_ERROR(
      CheckDrawn(done.drawn(), *request.draw, generated, deps.engine->vocabulary()));
  return DrawnFromWire(done.drawn());
}

std::vector<float> DecodeRole::Impl::TakeFeatures(const DecodeRequest& request,
                                                  const v1::PrefillDone& done) {
  if (request.features_asked == 0) return {};
  if (!done.has_features()) return features_absent.Add(), std::vector<float>();
  Result<std::vector<float>> rows = FeaturesFromWire(done.features(), deps.engine->FeatureSize(),
                                                     request.kv_end(), request.features_asked);
  if (rows) return features_came.Add(), std::move(*rows);
  features_refused.Add();
  LogWarning("a prefill worker sent features that are not used", {{"request", request.trace_id},
                                                                  {"address", request.address},
                                                                  {"error", rows.error().message}});
  return {};
}

Status DecodeRole::Impl::CheckWhole(const DecodeRequest& request, const v1::PrefillDone& done) {
  const KvLayout& layout = deps.engine->blocks().layout();
  const uint64_t expected = static_cast<uint64_t>(request.kv_end() - request.first_token) *
                            static_cast<uint64_t>(layout.num_layers);
  if (done.epoch() != request.epoch.value || done.token_layers() != expected) {
    return DataLoss(fmt::format(
        "data loss: epoch {} with {} token-layers were reported, epoch {} with {} expected",
        done.epoch(), done.token_layers(), request.epoch.value, expected));
  }
  const Lease& lease = *leases.Find(request.epoch);
  // No more writes can come. Copies by our side were acknowledged, so none is in progress.
  const bool fenced = lease.writer.transport->RevokeEpoch(request.epoch);
  if (!fenced && lease.writer.transport->capabilities().owner_copies) {
    return DataLoss(
        fmt::format("data loss: epoch {} was reported done while it was written", done.epoch()));
  }
  return Verify(request, done);
}

void DecodeRole::Impl::NoteFilled(DecodeRequest& request, const v1::PrefillDone& done) {
  const Lease& lease = *leases.Find(request.epoch);
  request.filled = true;
  request.remote.filled = deps.clock->Now();
  const ReportBounds bounds{.elapsed = request.remote.filled - request.remote.asked,
                            .tokens = request.tokens()};
  request.remote.queue = Duration(BoundNs(bounds, done.queue_ns()));
  request.remote.prefill = Duration(BoundNs(bounds, done.prefill_ns()));
  request.remote.moving = Duration(BoundNs(bounds, done.transfer_ns()));
  request.remote.tail = Duration(BoundNs(bounds, done.transfer_tail_ns()));
  request.remote.cached_tokens = BoundCount(bounds, done.prefill_cached_tokens());
  request.remote.blocks = BoundCount(bounds, done.blocks());
  request.remote.preemptions = done.preemptions();
  request.remote.pull = done.pull();
  BoundPull(bounds, &request.remote.pull);
  request.remote.transport = lease.writer.transport->capabilities().name;
  request.remote.worker = lease.writer.worker_id;
  ReportedSpans spans = done.spans();
  BoundSpans(bounds, &spans);
  request.remote.its_spans.assign(spans.begin(), spans.end());
  LogDebug("KV arrived", {{"request", request.trace_id},
                          {"address", request.address},
                          {"blocks", done.blocks()},
                          {"transport", request.remote.transport},
                          {"converted", lease.writer.conversion}});
}

void DecodeRole::Impl::OnDone(const std::string& address, const v1::PrefillDone& done) {
  DecodeRequest* request = FindTransfer(address, done.transfer_id());
  if (request == nullptr || request->phase != RequestPhase::kGranted) return;
  const auto lost = [&](const Error& error) {
    data_loss.Add();
    FailRemote(*request, error.message);
  };
  if (Status whole = CheckWhole(*request, done); !whole) return lost(whole.error());
  Result<std::optional<SampledToken>> drawn = TakeDrawn(*request, done);
  if (!drawn) return lost(drawn.error());
  NoteFilled(*request, done);
  const std::vector<float> features = TakeFeatures(*request, done);
  const Epoch epoch = request->epoch;
  leases.Close(epoch);
  by_transfer.erase(request->transfer_id);
  request->transfer_id = 0;
  ReleasePrompt(*request);
  request->phase = RequestPhase::kRunning;
  remote_filled.Add();
  request->remote.drawn = drawn->has_value();
  const auto first =
      deps.engine->RemoteFilled(request->sequence, std::move(*drawn),
                                {static_cast<int32_t>(done.features().begin()), features});
  deps.engine->EndLease(epoch);  // also if the sequence has just timed out
  if (!first) return;
  first_drawn.Add();
  Deliver({&*first, 1});
  NoteDrained();
}

void DecodeRole::Impl::OnFailed(const std::string& address, const v1::PrefillFailed& failed) {
  DecodeRequest* request = FindTransfer(address, failed.transfer_id());
  if (request == nullptr) return;
  // An error caused by the request itself would occur on every prefill worker.
  if (failed.error().code() != 0 && !failed.error().retryable()) request->targets.clear();
  const bool no_room = failed.error().code() == static_cast<int>(Code::kResourceExhausted);
  FailRemote(*request, failed.error().message(), no_room);
}

void DecodeRole::Impl::EndAttempt(DecodeRequest& request) {
  if (request.transfer_id != 0) {
    v1::DecodeToPrefill message;
    message.mutable_cancel()->set_transfer_id(request.transfer_id);
    peers->Send(request.address, std::move(message));
    by_transfer.erase(request.transfer_id);
    request.transfer_id = 0;
  }
  ReleasePrompt(request);
  if (request.phase == RequestPhase::kGranted) GiveUpLease(request.epoch);
}

// A long queue is a wait that the request ends, not a fault. Silence is one, logged once.
void DecodeRole::Impl::FailUnasked(DecodeRequest& request) {
  Speaker& speaker = speakers[request.address];
  const bool busy =
      speaker.last && deps.clock->Now() - *speaker.last < options.prefill_silence_limit;
  const bool expected = busy || speaker.warned;
  if (!busy) speaker.warned = true;
  FailRemote(request,
             fmt::format("the prefill worker did not ask for blocks in time: {}",
                         busy ? "it has others before this one" : "it says nothing"),
             expected);
}

void DecodeRole::Impl::FailRemote(DecodeRequest& request, const std::string& reason,
                                  bool expected) {
  const bool quiet = expected || peers->Draining(request.address);
  Log(quiet ? LogLevel::kInfo : LogLevel::kWarning, "remote prefill failed",
      {{"request", request.trace_id}, {"address", request.address}, {"error", reason}});
  remote_failed.Add();
  request.fallback = reason;
  request.failed.push_back({request.began, deps.clock->Now(), request.address, request.fallback});
  request.remote.asked = kNever;
  if (request.phase == RequestPhase::kGranted)
    deps.engine->RemoteFailed(request.sequence, /*run_locally=*/false);
  EndAttempt(request);
  StartRemote(request);
}

}  // namespace aisp
