#include <algorithm>

#include <fmt/format.h>

#include "common/log.h"
#include "prefill/prefill_role_impl.h"
#include "proto/fingerprint.h"
#include "proto/tenant.h"
#include "proto/wire_time.h"
#include "worker/feature_codec.h"
#include "worker/fingerprint.h"
#include "worker/sampling_codec.h"

namespace aisp {

void PrefillRole::Impl::OnLinkUp(LinkId link, const std::string& /*peer_address*/) {
  readers.Add(link, deps.clock->Now() + options.hello_limit);
}

void PrefillRole::Impl::OnMessage(LinkId link, v1::DecodeToPrefill message) {
  Reader* reader = readers.FindLink(link);
  if (reader == nullptr) return;
  if (message.body_case() == v1::DecodeToPrefill::kHello) {
    OnHello(*reader, message.hello());
    return;
  }
  if (!reader->greeted) return;  // refused or out of order; hello_deadline ends it
  switch (message.body_case()) {
    case v1::DecodeToPrefill::kPrefill:
      OnPrefill(*reader, message.prefill());
      break;
    case v1::DecodeToPrefill::kSharedPrompt:
      if (Status kept = reader->prompts.Keep(message.shared_prompt()); !kept) {
        LogError("a shared prompt is not kept",
                 {{"worker", reader->worker_id}, {"error", kept.error().message}});
      }
      return;
    case v1::DecodeToPrefill::kDropPrompt:
      reader->prompts.Drop(message.drop_prompt().prompt_id());
      return;
    case v1::DecodeToPrefill::kGrant:
      OnGrant(*reader, message.grant());
      break;
    case v1::DecodeToPrefill::kRefused:
      OnGrantRefused(*reader, message.refused());
      break;
    case v1::DecodeToPrefill::kCancel:
      OnCancel(*reader, message.cancel().transfer_id());
      break;
    case v1::DecodeToPrefill::kRevoke:
      OnRevoke(*reader, Epoch(message.revoke().epoch()));
      break;
    default:
      break;  // a newer peer's message; unknown ones are ignored
  }
  Settle();
  AskForBlocks();
  NoteDrained();
}

void PrefillRole::Impl::OnLinkDown(LinkId link, const Error& why) {
  Reader* reader = readers.FindLink(link);
  if (reader == nullptr) return;
  if (reader->greeted) {
    // Without transfers it is only the end of a process or of an idle connection.
    Log(reader->transfers > 0 ? LogLevel::kWarning : LogLevel::kInfo, "decode worker lost",
        {{"worker", reader->worker_id}, {"transfers", reader->transfers}, {"error", why.message}});
  }
  reader->up = false;
  DropReader(*reader);
  AskForBlocks();
  NoteDrained();
}

void PrefillRole::Impl::RefuseReader(Reader& reader, const std::string& reason) {
  LogError("decode worker refused", {{"worker", reader.worker_id}, {"reason", reason}});
  v1::PrefillToDecode message;
  message.mutable_refused()->set_reason(reason);
  SendToReader(reader.id, std::move(message));
}

void PrefillRole::Impl::OnHello(Reader& reader, const v1::KvHello& hello) {
  if (reader.greeted || reader.connecting != 0) return;
  reader.worker_id = hello.worker_id();
  reader.incarnation = hello.incarnation();
  reader.verify = hello.verify();
  if (Status fits = CheckFingerprints(options.worker.fingerprint, "this worker",
                                      hello.fingerprint(), "its peer");
      !fits) {
    RefuseReader(reader, fits.error().message);
    return;
  }
  Result<KvConversion> conversion = PlanFor(hello.fingerprint().kv_layout());
  if (!conversion) return RefuseReader(reader, conversion.error().message);
  // An earlier link of the same process is stale. One of another process with the same name is
  // left: the router ends one of two live ones, and a dead one's link ends by itself.
  std::vector<ReaderId> stale;
  for (const auto& [id, other] : readers.all()) {
    if (id != reader.id && other.up && (other.greeted || other.connecting != 0) &&
        other.worker_id == reader.worker_id && other.incarnation == reader.incarnation) {
      stale.push_back(id);
    }
  }
  for (const ReaderId id : stale) {
    Reader& old = *readers.Find(id);
    deps.readers->Close(old.link);
    old.up = false;
    DropReader(old);
  }
  const bool same_host = hello.host_id() == options.worker.host_id;
  // Runs elsewhere, so that an unreachable pool does not delay other readers. The result may come
  // before Connect returns.
  const auto over = std::make_shared<bool>(false);
  const uint64_t attempt = deps.connector->Connect(
      {hello.offers().begin(), hello.offers().end()}, same_host,
      [this, over, id = reader.id, same_host, conversion = *conversion](Result<PeerPool> pool) {
        *over = true;
        OnPool(id, same_host, conversion, std::move(pool));
      });
  if (!*over) reader.connecting = attempt;
}

Result<KvConversion> PrefillRole::Impl::PlanFor(const v1::KvLayoutDesc& peer) const {
  AISP_ASSIGN_OR_RETURN(const KvLayout layout, PeerLayout(peer));
  return KvConversion::Plan(deps.engine->blocks().layout(), layout);
}

void PrefillRole::Impl::OnPool(ReaderId id, bool same_host, const KvConversion& conversion,
                               Result<PeerPool> pool) {
  Reader& reader = *readers.Find(id);  // a removed reader cancels its attempt
  reader.connecting = 0;
  if (!pool) return RefuseReader(reader, pool.error().message);
  if (conversion.converts()) {
    if (Status may = pusher->staging().Check(conversion); !may) {
      pool->transport->Disconnect(pool->peer);
      return RefuseReader(reader, may.error().message);
    }
  }
  reader.conversion = conversion;
  reader.greeted = true;
  reader.hello_deadline = kNever;
  reader.pool = std::move(*pool);
  const std::string& lane = reader.pool.transport->capabilities().name;
  LogInfo("decode worker connected", {{"worker", reader.worker_id},
                                      {"transport", lane},
                                      {"gb_per_s", reader.pool.measured_bytes_per_s * 1e-9},
                                      {"converted", conversion.ToString()}});
  if (!reader.pool.warning.empty())
    LogWarning("KV lane", {{"worker", reader.worker_id}, {"warning", reader.pool.warning}});
  v1::PrefillToDecode message;
  v1::KvHelloAck* ack = message.mutable_hello();
  ack->set_worker_id(options.worker.worker_id);
  ack->set_incarnation(options.worker.incarnation);
  ack->set_transport(lane);
  ack->set_measured_bytes_per_s(reader.pool.measured_bytes_per_s);
  ack->set_warning(reader.pool.warning);
  ack->set_pid(same_host ? options.pid : 0);
  ack->set_lane_token(reader.pool.token);
  ack->set_draws(options.draws);
  ack->set_takes_grants(options.takes_grants);
  ack->set_conversion(conversion.ToString());
  SendToReader(reader.id, std::move(message));
  if (!shell->draining() && !standing_by) return;
  v1::PrefillToDecode draining;
  draining.mutable_draining();
  SendToReader(reader.id, std::move(draining));
}

// Whether another transfer is accepted; the number of transfers is bounded.
Status PrefillRole::Impl::MayTake(const Reader& reader) const {
  if (standing_by) return Unavailable("this worker does not prefill now; use another");
  if (shell->draining()) return Unavailable("this prefill worker is draining; use another");
  if (!reader.closing && transfers.size() < static_cast<size_t>(options.max_transfers)) return {};
  return ResourceExhausted(fmt::format("this prefill worker has {} of {} transfers; use another",
                                       transfers.size(), options.max_transfers));
}

Result<SequenceRequest> PrefillRole::Impl::MakeSequence(const Reader& reader,
                                                        const v1::PrefillRequest& request) const {
  SequenceRequest sequence;
  if (request.prompt_id() != 0) {
    const auto shared = reader.prompts.Find(request.prompt_id());
    if (!shared)
      return Unavailable(fmt::format("shared prompt {} is not known here", request.prompt_id()));
    sequence.tokens = *shared;
  }
  sequence.tokens.insert(sequence.tokens.end(), request.tokens().begin(), request.tokens().end());
  sequence.prompt_tokens = static_cast<int32_t>(sequence.tokens.size());
  sequence.kv_source = KvSource::kPrefillOnly;
  sequence.cache_scope = request.cache_salt();
  sequence.adapter = request.adapter();
  sequence.priority = request.priority();
  sequence.tenant = TenantFromWire(request.tenant());
  if (request.has_draw()) ApplyFirstDraw(request.draw(), &sequence);
  if (request.has_features()) {
    sequence.feature_window =
        FeatureWindowFor(request.features(), options.feature_layers, deps.engine->FeatureSize(),
                         options.max_feature_bytes);
  }
  if (sequence.tokens.size() < 2) {
    return InvalidArgument(
        "a prompt of one token has no KV to prefill; run it on the decode worker");
  }
  return sequence;
}

void PrefillRole::Impl::OnPrefill(Reader& reader, const v1::PrefillRequest& request) {
  Take(reader, request);
  // Acknowledged at once where it is not used, also if the request was refused.
  if (request.has_grant()) OnGrant(reader, request.grant());
}

void PrefillRole::Impl::Take(Reader& reader, const v1::PrefillRequest& request) {
  const Instant now = deps.clock->Now();
  const uint64_t id = request.transfer_id();
  if (FindTransfer(reader.id, id) != nullptr) {
    LogError("a decode worker used a transfer id twice",
             {{"worker", reader.worker_id}, {"transfer", id}, {"request", request.trace_id()}});
    return;
  }
  LogDebug("prefill requested", {{"request", request.trace_id()},
                                 {"worker", reader.worker_id},
                                 {"tokens", request.tokens_size()},
                                 {"shared_prompt", request.prompt_id()}});
  if (request.cached_only()) {
    reader.pool.transport->Rouse(reader.pool.peer);
    return holder->OnRequest(reader, request);
  }
  if (Status may = MayTake(reader); !may) return SendFailed(reader.id, id, may.error(), true);
  Result<SequenceRequest> sequence = MakeSequence(reader, request);
  std::vector<TokenId> tokens;
  if (sequence && request.has_pull()) tokens = sequence->tokens;
  // After a takeover, tokens emitted so far are not prompt but need KV as well.
  const int32_t num_tokens = sequence ? static_cast<int32_t>(sequence->tokens.size()) : 0;
  Result<SequenceId> added =
      sequence ? deps.engine->Add(std::move(*sequence)) : tl::unexpected(sequence.error());
  if (!added) {
    return SendFailed(reader.id, id, added.error(), MayRetry(FaultOf(added.error().code)));
  }
  Transfer transfer;
  transfer.key = TransferKey(++last_transfer);
  transfer.reader = reader.id;
  transfer.transfer_id = id;
  transfer.trace_id = request.trace_id();
  transfer.sequence = *added;
  transfer.tokens = num_tokens;
  transfer.end_token = request.has_draw() ? num_tokens : num_tokens - 1;
  transfer.received = now;
  const Duration timeout = MillisFromWire(request.timeout_ms());
  transfer.deadline = now + (timeout.count() > 0 ? timeout : options.default_timeout);
  by_sequence[*added] = transfer.key;
  by_wire_id[{reader.id, id}] = transfer.key;
  ++reader.transfers;
  if (!request.has_pull() && reader.IsNewGrant(request) && RunsSoon(transfer))
    transfer.phase = TransferPhase::kAsked;
  transfers.emplace(transfer.key, transfer);
  StartFetch(transfer.key, request, tokens);
  shell->NoteLoad(/*request=*/false);
}

bool PrefillRole::Impl::RunsSoon(const Transfer& transfer) const {
  const std::vector<SequenceId> upcoming = deps.engine->UpcomingGated(options.horizon_tokens);
  return std::ranges::find(upcoming, transfer.sequence) != upcoming.end();
}

Status PrefillRole::Impl::CheckGrant(const Reader& reader, const Transfer& transfer,
                                     const v1::Grant& grant) const {
  const KvLayout& layout = reader.layout();
  const auto first = static_cast<int64_t>(grant.first_token());
  const int64_t end = transfer.end_token;
  if (first % layout.block_tokens != 0 || first > transfer.tokens) {
    return InvalidArgument(fmt::format(
        "granted from token {}, not a block boundary of {} tokens within the prompt of {}", first,
        layout.block_tokens, transfer.tokens));
  }
  const int64_t wanted = first >= end ? 0 : layout.BlocksFor(static_cast<int32_t>(end - first));
  if (grant.blocks_size() < wanted) {
    return InvalidArgument(
        fmt::format("granted {} blocks where {} are needed", grant.blocks_size(), wanted));
  }
  const auto outside =
      std::find_if(grant.blocks().begin(), grant.blocks().end(),
                   [&layout](int32_t block) { return block < 0 || block >= layout.num_blocks; });
  if (outside != grant.blocks().end()) {
    return InvalidArgument(
        fmt::format("granted block {}, the pool has {}", *outside, layout.num_blocks));
  }
  return {};
}

void PrefillRole::Impl::OnGrant(Reader& reader, const v1::Grant& grant) {
  const Epoch epoch(grant.epoch());
  // A repeated grant: it is being written and will be acknowledged.
  if (FindEpoch(reader, epoch) != nullptr || holder->Writes(reader, epoch)) return;
  if (epoch.value <= reader.last_epoch) return SendFence(reader.id, epoch);
  reader.last_epoch = epoch.value;
  if (holder->OnGrant(reader, grant)) return;
  Transfer* transfer = FindTransfer(reader.id, grant.transfer_id());
  if (transfer == nullptr || transfer->phase != TransferPhase::kAsked) {
    SendFence(reader.id, epoch);  // nothing was or will be written for it
    return;
  }
  if (Status fits = CheckGrant(reader, *transfer, grant); !fits) {
    FailTransfer(*transfer, fits.error(), false);
    SendFence(reader.id, epoch);
    return;
  }
  const Instant now = deps.clock->Now();
  transfer->phase = TransferPhase::kGranted;
  transfer->epoch = epoch;
  transfer->first_token = static_cast<int32_t>(grant.first_token());
  transfer->granted = now;
  transfer->lease_end = now + MillisFromWire(grant.lease_ms());
  NoteOvertaken(*transfer);

  PushTarget target;
  target.transport = reader.pool.transport;
  target.peer = reader.pool.peer;
  target.layout = reader.layout();
  target.epoch = epoch;
  target.first_token = transfer->first_token;
  target.end_token = std::max(transfer->end_token, transfer->first_token);
  for (const int32_t block : grant.blocks()) target.blocks.push_back(BlockId(block));
  target.lease_end = transfer->lease_end;
  transfer->push = pusher->Open(std::move(target));
  by_push[transfer->push] = transfer->key;
  StartPushing(*transfer);
  SettleTransfer(*transfer);
}

void PrefillRole::Impl::OnGrantRefused(Reader& reader, const v1::GrantRefused& refused) {
  Transfer* transfer = FindTransfer(reader.id, refused.transfer_id());
  if (transfer == nullptr || transfer->phase != TransferPhase::kAsked) return;
  grants_refused.Add();
  if (++transfer->refusals >= options.max_refusals) {
    FailTransfer(*transfer,
                 Error{Code::kResourceExhausted,
                       fmt::format("the decode worker had no blocks for {} tokens, asked {} times",
                                   transfer->tokens, transfer->refusals)},
                 true);
    return;
  }
  if (transfer->refusals == 1) {
    LogInfo("prefill waits for blocks of the decode worker",
            {{"request", transfer->trace_id}, {"tokens", transfer->tokens}});
  }
  // Ask less often the longer it has waited: a full pool empties slowly.
  const Duration hint = MillisFromWire(refused.retry_after_ms()) * (1 + transfer->refusals / 8);
  transfer->phase = TransferPhase::kRefused;
  transfer->retry_at =
      deps.clock->Now() + std::clamp(hint, options.min_refusal_retry, options.max_refusal_retry);
}

void PrefillRole::Impl::OnCancel(Reader& reader, uint64_t transfer_id) {
  if (holder->OnCancel(reader, transfer_id)) return;
  Transfer* transfer = FindTransfer(reader.id, transfer_id);
  if (transfer != nullptr && transfer->phase != TransferPhase::kFencing) Abandon(*transfer);
}

void PrefillRole::Impl::OnRevoke(Reader& reader, Epoch epoch) {
  if (holder->OnRevoke(reader, epoch)) return;
  Transfer* transfer = FindEpoch(reader, epoch);
  if (transfer == nullptr) {
    reader.last_epoch = std::max(reader.last_epoch, epoch.value);
    SendFence(reader.id, epoch);
  } else if (transfer->phase != TransferPhase::kFencing) {
    Abandon(*transfer);
  }  // otherwise its last completion sends the acknowledgement
}

void PrefillRole::Impl::DropReader(Reader& reader) {
  const ReaderId id = reader.id;
  if (reader.connecting != 0) deps.connector->Cancel(std::exchange(reader.connecting, 0));
  std::vector<TransferKey> keys;
  for (const auto& [key, transfer] : transfers) {
    if (transfer.reader == id && transfer.phase != TransferPhase::kFencing) keys.push_back(key);
  }
  for (const TransferKey key : keys) Abandon(transfers.at(key));
  holder->DropReader(id);
  ReleaseIfIdle(id);
}

void PrefillRole::Impl::ReleaseIfIdle(ReaderId id) {
  Reader* reader = readers.Find(id);
  if (reader == nullptr || reader->transfers > 0) return;
  if (reader->up && reader->closing) {
    deps.readers->Close(reader->link);
    reader->up = false;
  }
  if (reader->up) return;
  if (reader->greeted) reader->pool.transport->Disconnect(reader->pool.peer);
  readers.Erase(id);
}

}  // namespace aisp
