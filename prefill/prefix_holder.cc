#include "prefill/prefix_holder.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "kvcache/block_check.h"
#include "proto/wire_time.h"
#include "worker/worker_metrics.h"

namespace aisp {

void PrefixHolder::AddMetrics(Metrics& m, const MetricLabels& labels) {
  const auto result = [&](const char* name) {
    return m.AddCounter("aisp_prefixes_given_total",
                        "Prefixes that other workers asked this one for",
                        WithLabel(labels, "result", name));
  };
  given_ = result("given");
  missed_ = result("missed");
  busy_ = result("refused");
  late_ = result("late");
  failed_ = result("failed");
  unwanted_ = result("withdrawn");
  promoted_ = m.AddCounter("aisp_prefixes_promoted_total",
                           "Prefixes that were brought from a tier for another worker", labels);
  tokens_ =
      m.AddCounter("aisp_prefix_given_tokens_total",
                   "Prompt tokens whose KV was written to other workers from the cache", labels);
  bytes_ = m.AddCounter("aisp_prefix_given_bytes_total", "Bytes of their KV", labels);
}

int32_t PrefixHolder::PinnedBlocks() const {
  size_t blocks = 0;
  for (const auto& [key, push] : pushes_) blocks += push.blocks.size();
  return static_cast<int32_t>(blocks);
}

void PrefixHolder::Refuse(ReaderId reader, uint64_t transfer_id, const Error& error) {
  const Counter& counter = error.code == Code::kNotFound            ? missed_
                           : error.code == Code::kResourceExhausted ? busy_
                           : error.code == Code::kDeadlineExceeded  ? late_
                                                                    : failed_;
  counter.Add();
  v1::PrefillToDecode message;
  v1::PrefillFailed* failed = message.mutable_failed();
  failed->set_transfer_id(transfer_id);
  failed->mutable_error()->set_code(static_cast<int>(error.code));
  failed->mutable_error()->set_message(error.message);
  failed->mutable_error()->set_retryable(true);
  deps_.host->SendToReader(reader, std::move(message));
}

void PrefixHolder::OnRequest(Reader& reader, const v1::PrefillRequest& request) {
  const uint64_t id = request.transfer_id();
  Key same = 0;
  if (FindOpen(reader.id, id, &same) != nullptr) {
    LogError("a worker used a transfer id twice", {{"worker", reader.worker_id}, {"transfer", id}});
    return;
  }
  if (const Status& failed = deps_.engine->failed(); !failed)
    return Refuse(reader.id, id, failed.error());
  if (reader.closing || size() >= static_cast<size_t>(options_.max_pushes)) {
    return Refuse(
        reader.id, id,
        Error{Code::kResourceExhausted,
              fmt::format("this worker gives away {} of {} prefixes at a time; compute it", size(),
                          options_.max_pushes)});
  }
  Push push;
  push.reader = reader.id;
  push.transfer_id = id;
  push.trace_id = request.trace_id();
  push.root = deps_.engine->RootOf(request.cache_salt(), request.adapter());
  push.tokens.assign(request.tokens().begin(), request.tokens().end());
  push.reader_has = request.decode_match_tokens();
  push.comes_granted = reader.IsNewGrant(request);
  push.received = deps_.clock->Now();
  const Duration wanted = MillisFromWire(request.timeout_ms());
  push.until = push.received +
               (wanted.count() > 0 ? std::min(wanted, options_.grant_limit) : options_.grant_limit);
  const KvTiers::Waiting waiting = deps_.engine->PromotePrefix(push.root, push.tokens);
  push.promotion = waiting.promotion;
  push.promoted_by = waiting.until;
  const Key key = ++last_;
  pushes_.emplace(key, std::move(push));
  ++reader.transfers;
  if (waiting.promotion == 0) return Offer(key);
  ++promotions_;
  promoted_.Add();
}

void PrefixHolder::Offer(Key key) {
  Push& push = pushes_.at(key);
  const Reader& reader = *deps_.readers->Find(push.reader);
  BlockManager& blocks = deps_.engine->blocks();
  const int32_t pinned_before = PinnedBlocks();
  std::vector<BlockId> held =
      blocks.MatchAndPin(push.root, push.tokens, static_cast<int32_t>(push.tokens.size()));
  blocks.Pin(held, PinKind::kTier);
  blocks.Unpin(held, PinKind::kSequence);
  push.blocks = std::move(held);
  push.phase = Phase::kAsked;
  push.offered = deps_.clock->Now();
  const int64_t held_tokens = HeldTokens(reader, push.blocks.size());
  const auto most =
      static_cast<int32_t>(options_.max_pinned * static_cast<double>(blocks.layout().num_blocks));
  const bool missing = held_tokens <= push.reader_has;
  const int32_t pinned = pinned_before + static_cast<int32_t>(push.blocks.size());
  if (missing || pinned > most) {
    Refuse(push.reader, push.transfer_id,
           missing
               ? Error{Code::kNotFound,
                       fmt::format("{} tokens of the prefix are cached here, its reader has {}",
                                   held_tokens, push.reader_has)}
               : Error{Code::kResourceExhausted,
                       fmt::format("giving it away would pin {} blocks, at most are {}; compute it",
                                   pinned, most)});
    return Abandon(key);
  }
  if (Granted(push)) return Begin(key);
  if (!push.comes_granted) Announce(push);
}

void PrefixHolder::Announce(Push& push) {
  if (std::exchange(push.told, true)) return;
  const Reader& reader = *deps_.readers->Find(push.reader);
  v1::PrefillToDecode message;
  message.mutable_need()->set_transfer_id(push.transfer_id);
  message.mutable_need()->set_held_tokens(
      static_cast<uint32_t>(HeldTokens(reader, push.blocks.size())));
  deps_.host->SendToReader(push.reader, std::move(message));
}

int32_t PrefixHolder::HeldTokens(const Reader& reader, size_t blocks) const {
  const int32_t theirs = reader.layout().block_tokens;
  return static_cast<int32_t>(blocks) * BlockTokens() / theirs * theirs;
}

PrefixHolder::Push* PrefixHolder::FindOpen(ReaderId reader, uint64_t transfer_id, Key* key) {
  for (auto& [k, push] : pushes_) {
    if (push.reader != reader || push.transfer_id != transfer_id || push.phase == Phase::kFencing)
      continue;
    *key = k;
    return &push;
  }
  return nullptr;
}

Status PrefixHolder::CheckGrant(const Reader& reader, size_t held_blocks,
                                const v1::Grant& grant) const {
  const int64_t first = grant.first_token();
  const int64_t held = HeldTokens(reader, held_blocks);
  const int32_t each = reader.layout().block_tokens;
  if (first % each != 0 || grant.blocks().empty() || first >= held) {
    return InvalidArgument(
        fmt::format("granted {} blocks of {} tokens from token {} on, {} tokens are held",
                    grant.blocks_size(), each, first, held));
  }
  const int32_t pool = reader.layout().num_blocks;
  const auto outside = std::find_if(grant.blocks().begin(), grant.blocks().end(),
                                    [pool](int32_t block) { return block < 0 || block >= pool; });
  if (outside == grant.blocks().end()) return {};
  return InvalidArgument(fmt::format("granted block {}, the pool has {}", *outside, pool));
}

bool PrefixHolder::OnGrant(const Reader& reader, const v1::Grant& grant) {
  Key key = 0;
  Push* push = FindOpen(reader.id, grant.transfer_id(), &key);
  if (push == nullptr) return false;
  if (Granted(*push)) {
    deps_.host->SendFence(reader.id, Epoch(grant.epoch()));  // granted twice: this one is not used
    return true;
  }
  const bool promoting = push->phase == Phase::kPromoting;
  const size_t blocks =
      promoting ? push->tokens.size() / static_cast<size_t>(BlockTokens()) : push->blocks.size();
  if (Status fits = CheckGrant(reader, blocks, grant); !fits) {
    deps_.host->SendFence(reader.id, Epoch(grant.epoch()));
    Fail(key, fits.error());
    return true;
  }
  push->until = deps_.clock->Now() + MillisFromWire(grant.lease_ms());
  push->epoch = Epoch(grant.epoch());
  push->grant = grant;
  if (!promoting) Begin(key);
  return true;
}

// Writes the held blocks into the granted ones.
void PrefixHolder::Begin(Key key) {
  Push& push = pushes_.at(key);
  const Reader& reader = *deps_.readers->Find(push.reader);
  // The grant was checked against what was requested; less may be held now.
  if (Status fits = CheckGrant(reader, push.blocks.size(), push.grant); !fits)
    return Fail(key, fits.error());
  push.phase = Phase::kGranted;
  push.granted = deps_.clock->Now();
  push.first_token = static_cast<int32_t>(push.grant.first_token());
  // The reader grants blocks for its request, and was told which part is held.
  const int64_t granted_end =
      int64_t{push.first_token} + int64_t{push.grant.blocks_size()} * reader.layout().block_tokens;
  push.end_token =
      static_cast<int32_t>(std::min<int64_t>(granted_end, HeldTokens(reader, push.blocks.size())));
  PushTarget target;
  target.transport = reader.pool.transport;
  target.peer = reader.pool.peer;
  target.layout = reader.layout();
  target.epoch = push.epoch;
  target.first_token = push.first_token;
  target.end_token = push.end_token;
  for (const int32_t block : push.grant.blocks()) target.blocks.push_back(BlockId(block));
  target.lease_end = push.until;
  push.push = deps_.pusher->Open(std::move(target));
  by_push_[push.push] = key;
  deps_.pusher->ReadyAllLayers(push.push, push.end_token, push.blocks);
  Announce(push);
  // Computed during the write: published and pinned blocks do not change.
  push.checks = ChecksOf(push, reader);
  Settle(key);
}

std::vector<uint64_t> PrefixHolder::ChecksOf(const Push& push, const Reader& reader) const {
  if (deps_.host_pool == nullptr || !reader.verify) return {};
  if (!reader.conversion.whole()) {
    return reader.conversion.Checks(deps_.host_pool, push.blocks, push.first_token, push.end_token);
  }
  std::vector<uint64_t> checks;
  const auto end = static_cast<size_t>(push.end_token / BlockTokens());
  for (auto i = static_cast<size_t>(push.first_token / BlockTokens()); i < end; ++i) {
    checks.push_back(BlockCheck(deps_.engine->blocks().layout(), deps_.host_pool, push.blocks[i]));
  }
  return checks;
}

void PrefixHolder::OnTiers() {
  if (deps_.engine->tiers() == nullptr) return;
  std::vector<Key> over;
  for (const auto& [key, push] : pushes_) {
    if (push.phase == Phase::kPromoting && !deps_.engine->tiers()->UnderWay(push.promotion))
      over.push_back(key);
  }
  for (const Key key : over) {
    if (pushes_.contains(key)) Offer(key);
  }
}

bool PrefixHolder::OnCancel(const Reader& reader, uint64_t transfer_id) {
  Key key = 0;
  if (FindOpen(reader.id, transfer_id, &key) == nullptr) return false;
  unwanted_.Add();
  Abandon(key);
  return true;
}

bool PrefixHolder::OnRevoke(const Reader& reader, Epoch epoch) {
  for (const auto& [key, push] : pushes_) {
    if (!Granted(push) || push.epoch != epoch) continue;
    const Reader* owner = deps_.readers->Find(push.reader);
    if (owner == nullptr || !owner->Is(reader)) continue;
    // A fencing one is acknowledged with its last completion.
    if (push.phase != Phase::kFencing) {
      unwanted_.Add();
      Abandon(Key(key));
    }
    return true;
  }
  return false;
}

bool PrefixHolder::Writes(const Reader& reader, Epoch epoch) const {
  return std::any_of(pushes_.begin(), pushes_.end(), [&](const auto& each) {
    const Push& push = each.second;
    const Reader* owner = deps_.readers->Find(push.reader);
    return Granted(push) && push.epoch == epoch && owner != nullptr && owner->Is(reader);
  });
}

bool PrefixHolder::OnPush(PushId push) {
  const auto it = by_push_.find(push);
  if (it == by_push_.end()) return false;
  Settle(Key(it->second));
  return true;
}

void PrefixHolder::Settle(Key key) {
  const Push& push = pushes_.at(key);
  if (push.phase == Phase::kFencing) {
    if (!deps_.pusher->Idle(push.push)) return;
    deps_.host->SendFence(push.reader, push.epoch);
    Erase(key);
    return;
  }
  if (const Status& failure = deps_.pusher->Failure(push.push); !failure) {
    const Error error = failure.error();
    if (error.code == Code::kUnavailable) {
      deps_.host->FailReader(push.reader, error);
    } else {
      Fail(key, error);
    }
    return;
  }
  if (deps_.pusher->Complete(push.push)) Finish(key);
}

void PrefixHolder::Finish(Key key) {
  const Push& push = pushes_.at(key);
  const PushTotals& totals = deps_.pusher->Totals(push.push);
  v1::PrefillToDecode message;
  v1::PrefillDone* done = message.mutable_done();
  done->set_transfer_id(push.transfer_id);
  done->set_epoch(push.epoch.value);
  done->set_token_layers(totals.token_layers);
  done->set_prefill_cached_tokens(static_cast<uint32_t>(push.end_token));
  done->set_queue_ns((push.granted - push.received).count());
  if (push.promotion != 0) done->set_promotion_ns((push.offered - push.received).count());
  done->set_transfer_ns((deps_.clock->Now() - push.granted).count());
  done->set_transfer_tail_ns((deps_.clock->Now() - push.granted).count());
  done->set_bytes(totals.bytes);
  done->set_blocks(totals.blocks);
  const Reader& reader = *deps_.readers->Find(push.reader);
  done->mutable_block_checks()->Add(push.checks.begin(), push.checks.end());
  // Without NeedBlocks the reader expects all that it granted.
  const int64_t granted = int64_t{push.grant.blocks_size()} * reader.layout().block_tokens;
  if (push.end_token - push.first_token == granted) deps_.host->LeaveNote(push.reader, message);
  deps_.host->SendToReader(push.reader, std::move(message));
  given_.Add();
  tokens_.Add(push.end_token - push.first_token);
  bytes_.Add(static_cast<double>(totals.bytes));
  LogDebug("a prefix was given away", {{"request", push.trace_id},
                                       {"worker", reader.worker_id},
                                       {"tokens", push.end_token - push.first_token}});
  Erase(key);
}

void PrefixHolder::Fail(Key key, const Error& error) {
  const Push& push = pushes_.at(key);
  LogInfo("a prefix was not given away",
          {{"request", push.trace_id}, {"transfer", push.transfer_id}, {"error", error.message}});
  Refuse(push.reader, push.transfer_id, error);
  Abandon(key);
}

void PrefixHolder::Abandon(Key key) {
  Push& push = pushes_.at(key);
  if (push.phase == Phase::kPromoting || push.phase == Phase::kAsked) {
    if (Granted(push)) deps_.host->SendFence(push.reader, push.epoch);
    return Erase(key);
  }
  push.phase = Phase::kFencing;
  deps_.pusher->Stop(push.push);
  Settle(key);
}

void PrefixHolder::Erase(Key key) {
  const auto it = pushes_.find(key);
  const Push push = std::move(it->second);
  pushes_.erase(it);
  if (by_push_.contains(push.push)) {
    by_push_.erase(push.push);
    deps_.pusher->Close(push.push);
  }
  deps_.engine->blocks().Unpin(push.blocks, PinKind::kTier);
  deps_.host->OnTransferOver(push.reader);
}

void PrefixHolder::DropReader(ReaderId id, const Error* error) {
  std::vector<Key> keys;
  for (const auto& [key, push] : pushes_) {
    if (push.reader == id && push.phase != Phase::kFencing) keys.push_back(key);
  }
  for (const Key key : keys) {
    if (error == nullptr) unwanted_.Add();
    error != nullptr ? Fail(key, *error) : Abandon(key);
  }
}

void PrefixHolder::OnEngineFailed(const Error& error) {
  std::vector<Key> keys;
  for (const auto& [key, push] : pushes_) {
    if (push.phase != Phase::kFencing) keys.push_back(key);
  }
  for (const Key key : keys) Fail(key, error);
}

Instant PrefixHolder::NextTimer() const {
  Instant next = kNever;
  for (const auto& [key, push] : pushes_) {
    if (push.phase == Phase::kFencing) continue;
    next = std::min(next, push.until);
    if (push.phase == Phase::kPromoting) next = std::min(next, push.promoted_by);
  }
  return next;
}

void PrefixHolder::OnTimer(Instant now) {
  std::vector<Key> late, slow;
  for (const auto& [key, push] : pushes_) {
    if (push.phase == Phase::kFencing) continue;
    if (now >= push.until) {
      late.push_back(key);
    } else if (push.phase == Phase::kPromoting && now >= push.promoted_by) {
      slow.push_back(key);
    }
  }
  for (const Key key : late) {
    Fail(key,
         Error{Code::kDeadlineExceeded, Granted(pushes_.at(key))
                                            ? "the lease ended before all of the prefix was written"
                                            : "no blocks were granted for the prefix in time"});
  }
  for (const Key key : slow) {
    if (pushes_.contains(key)) Offer(key);
  }
}

}  // namespace aisp
