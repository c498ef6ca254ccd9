#include "decode/prefix_puller.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "decode/granted_blocks.h"
#include "worker/worker_metrics.h"

namespace aisp {
namespace {

constexpr std::pair<v1::PrefixPull::Result, const char*> kResults[] = {
    {v1::PrefixPull::FILLED, "filled"},   {v1::PrefixPull::MISSED, "missed"},
    {v1::PrefixPull::CACHED, "cached"},   {v1::PrefixPull::LATE, "late"},
    {v1::PrefixPull::REFUSED, "refused"}, {v1::PrefixPull::FAILED, "failed"}};

Duration LimitOf(int64_t us, Duration most) {
  return std::clamp(Duration(std::chrono::microseconds(std::clamp<int64_t>(us, 0, INT32_MAX))),
                    Duration(std::chrono::milliseconds(1)), most);
}

}  // namespace

void PrefixPuller::AddMetrics(Metrics& m, const MetricLabels& labels) {
  for (const auto& [result, name] : kResults) {
    results_[result] =
        m.AddCounter("aisp_prefix_pulls_total", "Prefixes that another worker was asked for",
                     WithLabel(labels, "result", name));
  }
  tokens_ = m.AddCounter("aisp_prefix_pull_tokens_total",
                         "Prompt tokens whose KV another worker's cache brought", labels);
  bytes_ = m.AddCounter("aisp_prefix_pull_bytes_total", "Bytes of their KV", labels);
  seconds_ = m.AddHistogram("aisp_prefix_pull_seconds",
                            "From asking the holder of a prefix to having all of it",
                            LatencyBuckets(), labels);
}

uint64_t PrefixPuller::Start(const v1::PrefixSource& source, const PullWish& wish,
                             PullOutcome* outcome) {
  const std::string& address = source.holder().kv_address();
  const Instant now = deps_.clock->Now();
  const int32_t block_tokens = deps_.engine->blocks().layout().block_tokens;
  // The last block of a prompt that is held as a whole too: its sequence begins with a copy of it.
  const auto most = static_cast<int64_t>(wish.tokens.size());
  const auto wanted =
      static_cast<int32_t>(std::min<int64_t>(source.tokens(), most) / block_tokens * block_tokens);
  outcome->holder = source.holder().worker_id();
  outcome->began = outcome->ended = now;
  const auto none = [&](PullResult result, std::string why) {
    outcome->result = result;
    outcome->why = std::move(why);
    Count(*outcome);
    return uint64_t{0};
  };
  const int32_t match = deps_.engine->blocks().MatchLength(wish.root, wish.tokens, wanted);
  if (wanted <= match) return none(v1::PrefixPull::CACHED, "");
  if (const uint64_t joined = Join(address, wish, static_cast<size_t>(wanted)); joined != 0)
    return joined;
  if (std::string full = Full(address); !full.empty())
    return none(v1::PrefixPull::REFUSED, std::move(full));
  if (Status reached = deps_.peers->Reach(address); !reached)
    return none(v1::PrefixPull::REFUSED, reached.error().message);
  Pull pull;
  pull.address = address;
  pull.holder = source.holder().worker_id();
  pull.root = wish.root;
  pull.tokens.assign(wish.tokens.begin(), wish.tokens.begin() + wanted);
  pull.request = wish.request;
  pull.began = now;
  pull.begin_by = now + LimitOf(source.begin_within_us(), options_.most_limit);
  pull.over_by = now + LimitOf(source.limit_us(), options_.most_limit);
  const uint64_t id = deps_.listener->NextTransfer();
  Pull& stored = pulls_.emplace(id, std::move(pull)).first->second;
  if (deps_.peers->Up(address) == nullptr) return id;
  const PullOutcome asked = Ask(id, stored);
  if (asked.result == v1::PrefixPull::NONE) return id;
  pulls_.erase(id);
  return none(asked.result, asked.why);
}

uint64_t PrefixPuller::Join(const std::string& address, const PullWish& wish, size_t tokens) {
  for (auto& [id, pull] : pulls_) {
    if (pull.address != address || pull.root != wish.root || pull.tokens.size() < tokens) continue;
    const size_t common = std::min(pull.tokens.size(), wish.tokens.size());
    if (!std::equal(pull.tokens.begin(), pull.tokens.begin() + static_cast<ptrdiff_t>(common),
                    wish.tokens.begin()))
      continue;
    ++pull.waiters;
    return id;
  }
  return 0;
}

std::string PrefixPuller::Full(const std::string& address) const {
  const auto here = std::count_if(pulls_.begin(), pulls_.end(), [&address](const auto& each) {
    return each.second.address == address;
  });
  if (pulls_.size() < static_cast<size_t>(options_.max_pulls) &&
      here < options_.max_pulls_of_one_holder)
    return "";
  return fmt::format("{} prefixes are pulled already, {} of them from {}; it is computed",
                     pulls_.size(), here, address);
}

PullOutcome PrefixPuller::Ask(uint64_t id, Pull& pull) {
  const auto not_asked = [](PullResult result, std::string why) {
    PullOutcome outcome;
    outcome.result = result;
    outcome.why = std::move(why);
    return outcome;
  };
  const auto tokens = static_cast<int32_t>(pull.tokens.size());
  if (!deps_.listener->MayGrant(pull.address, deps_.engine->blocks().layout().BlocksFor(tokens))) {
    return not_asked(v1::PrefixPull::REFUSED,
                     "its holder has as many blocks of this worker as it may have");
  }
  const Result<RemoteGrant> grant = deps_.engine->GrantPrefix(pull.root, pull.tokens, tokens);
  if (!grant) {
    const bool cached = grant.error().code == Code::kFailedPrecondition;
    return not_asked(cached ? v1::PrefixPull::CACHED : v1::PrefixPull::REFUSED,
                     cached ? "" : grant.error().message);
  }
  const Instant now = deps_.clock->Now();
  const Writer& writer = *deps_.peers->Up(pull.address);
  AllowWrites(deps_.engine->blocks().layout(), grant->blocks, grant->epoch, writer.transport);
  v1::DecodeToPrefill message;
  v1::PrefillRequest* request = message.mutable_prefill();
  *request = pull.request;
  request->set_transfer_id(id);
  request->set_cached_only(true);
  request->mutable_tokens()->Add(pull.tokens.begin(), pull.tokens.end());
  request->set_decode_match_tokens(static_cast<uint32_t>(grant->first_token));
  request->set_timeout_ms(std::max<int64_t>(1, (pull.over_by - now).count() / 1'000'000));
  pull.asked = now;
  if (writer.takes_grants) *request->mutable_grant() = GrantOf(id, pull, *grant);
  if (Status sent = deps_.peers->Offer(pull.address, std::move(message)); !sent) {
    writer.transport->RevokeEpoch(grant->epoch);
    deps_.engine->DropPrefix(grant->epoch);
    deps_.engine->EndLease(grant->epoch);  // nobody got the grant
    return not_asked(v1::PrefixPull::REFUSED, sent.error().message);
  }
  pull.phase = Phase::kAsked;
  pull.epoch = grant->epoch;
  pull.first_token = grant->first_token;
  pull.end_token = tokens;
  deps_.leases->Open({.epoch = grant->epoch,
                      .writer = writer,
                      .blocks = static_cast<int32_t>(grant->blocks.size()),
                      .transfer_id = id,
                      .revoked = false,
                      .revoked_at = kNever});
  if (!writer.takes_grants) {
    message.Clear();
    *message.mutable_grant() = GrantOf(id, pull, *grant);
    deps_.peers->Send(pull.address, std::move(message));
  }
  return {};
}

void PrefixPuller::OnSessionUp(const std::string& address) {
  std::vector<std::pair<uint64_t, PullOutcome>> over;
  for (auto& [id, pull] : pulls_) {
    if (pull.address != address || pull.phase != Phase::kDialling) continue;
    PullOutcome asked = Ask(id, pull);
    if (asked.result != v1::PrefixPull::NONE) over.emplace_back(id, std::move(asked));
  }
  for (const auto& [id, outcome] : over) End(id, outcome);
}

void PrefixPuller::OnSessionLost(const std::string& address, const Error& why) {
  std::vector<std::pair<uint64_t, bool>> lost;
  for (const auto& [id, pull] : pulls_) {
    if (pull.address == address) lost.emplace_back(id, pull.phase == Phase::kDialling);
  }
  for (const auto& [id, dialling] : lost) {
    Drop(id, dialling ? v1::PrefixPull::REFUSED : v1::PrefixPull::FAILED,
         "the holder of the prefix is lost: " + why.message);
  }
}

bool PrefixPuller::OnPeer(const std::string& address, const v1::PrefillToDecode& message) {
  const uint64_t id = message.has_need()     ? message.need().transfer_id()
                      : message.has_done()   ? message.done().transfer_id()
                      : message.has_failed() ? message.failed().transfer_id()
                                             : 0;
  const auto it = pulls_.find(id);
  if (it == pulls_.end() || it->second.address != address) return false;
  Pull& pull = it->second;
  if (message.has_need()) {
    OnNeed(id, pull, int64_t{message.need().held_tokens()});
  } else if (message.has_done()) {
    OnDone(id, pull, message.done());
  } else {
    OnFailed(id, message.failed());
  }
  return true;
}

void PrefixPuller::OnNeed(uint64_t id, Pull& pull, int64_t held) {
  if (pull.phase != Phase::kAsked) return;  // a repeated message
  const KvLayout& layout = deps_.engine->blocks().layout();
  const auto asked = static_cast<int64_t>(pull.tokens.size());
  if (held > asked || held % layout.block_tokens != 0) {
    return Drop(id, v1::PrefixPull::FAILED,
                fmt::format("its holder says it holds {} tokens of the {} that were asked for, in "
                            "blocks of {}",
                            held, asked, layout.block_tokens));
  }
  if (held <= pull.first_token)
    return Drop(id, v1::PrefixPull::MISSED, "its holder has no more of it than is here");
  pull.phase = Phase::kBegun;
  pull.end_token = static_cast<int32_t>(held);
}

v1::Grant PrefixPuller::GrantOf(uint64_t id, const Pull& pull, const RemoteGrant& grant) const {
  v1::Grant wire;
  wire.set_transfer_id(id);
  wire.set_epoch(grant.epoch.value);
  wire.set_first_token(static_cast<uint32_t>(grant.first_token));
  for (const BlockId block : grant.blocks) wire.add_blocks(block.value);
  wire.set_lease_ms(std::max<int64_t>(1, (pull.over_by - pull.asked).count() / 1'000'000));
  return wire;
}

Status PrefixPuller::CheckDone(const Pull& pull, const v1::PrefillDone& done) const {
  const KvLayout& layout = deps_.engine->blocks().layout();
  const uint64_t expected = static_cast<uint64_t>(pull.end_token - pull.first_token) *
                            static_cast<uint64_t>(layout.num_layers);
  if (done.epoch() != pull.epoch.value || done.token_layers() != expected) {
    return DataLoss(fmt::format(
        "data loss: epoch {} with {} token-layers were reported, epoch {} with {} expected",
        done.epoch(), done.token_layers(), pull.epoch.value, expected));
  }
  // No more writes can come; see DecodeRole::Impl::CheckWhole.
  KvTransport* transport = deps_.leases->Find(pull.epoch)->writer.transport;
  if (!transport->RevokeEpoch(pull.epoch) && transport->capabilities().owner_copies) {
    return DataLoss(fmt::format("data loss: epoch {} was reported done while it was written",
                                pull.epoch.value));
  }
  if (deps_.host_pool == nullptr || done.block_checks().empty()) return {};
  const int32_t tokens = pull.end_token - pull.first_token;
  const auto written = static_cast<size_t>(tokens / layout.block_tokens);
  const bool converted = !deps_.leases->Find(pull.epoch)->writer.conversion.empty();
  return CheckArrived(layout, deps_.host_pool,
                      {deps_.engine->PrefixBlocks(pull.epoch).first(written), tokens, converted},
                      done.block_checks());
}

void PrefixPuller::OnDone(uint64_t id, Pull& pull, const v1::PrefillDone& done) {
  if (pull.phase == Phase::kDialling) return;
  if (Status whole = CheckDone(pull, done); !whole)
    return Drop(id, v1::PrefixPull::FAILED, whole.error().message);
  PullOutcome outcome;
  outcome.result = v1::PrefixPull::FILLED;
  outcome.tokens = pull.end_token - pull.first_token;
  outcome.bytes =
      static_cast<uint64_t>(outcome.tokens / deps_.engine->blocks().layout().block_tokens) *
      deps_.engine->blocks().layout().BlockBytes();
  outcome.transport = deps_.leases->Find(pull.epoch)->writer.transport->capabilities().name;
  outcome.moving = deps_.clock->Now() - pull.asked;
  outcome.promoting = std::clamp(Duration(done.promotion_ns()), Duration{}, outcome.moving);
  deps_.leases->Close(pull.epoch);
  deps_.engine->PrefixFilled(pull.epoch, pull.end_token);
  End(id, std::move(outcome));
}

void PrefixPuller::OnFailed(uint64_t id, const v1::PrefillFailed& failed) {
  const auto code = static_cast<Code>(failed.error().code());
  const PullResult result = code == Code::kNotFound            ? v1::PrefixPull::MISSED
                            : code == Code::kDeadlineExceeded  ? v1::PrefixPull::LATE
                            : code == Code::kResourceExhausted ? v1::PrefixPull::REFUSED
                                                               : v1::PrefixPull::FAILED;
  Drop(id, result, failed.error().message());
}

bool PrefixPuller::OnGivenBack(uint64_t transfer_id) {
  if (pulls_.find(transfer_id) == pulls_.end()) return false;
  Drop(transfer_id, v1::PrefixPull::FAILED, "its holder gave the grant back");
  return true;
}

void PrefixPuller::Abandon(uint64_t id) {
  const auto it = pulls_.find(id);
  if (it == pulls_.end() || --it->second.waiters > 0) return;
  Drop(id, v1::PrefixPull::NONE, "nobody waits for it any more");
}

void PrefixPuller::Drop(uint64_t id, PullResult result, const std::string& why) {
  const Pull& pull = pulls_.at(id);
  if (pull.phase != Phase::kDialling) {
    v1::DecodeToPrefill message;
    message.mutable_cancel()->set_transfer_id(id);
    deps_.peers->Send(pull.address, std::move(message));
    deps_.engine->DropPrefix(pull.epoch);
    deps_.listener->GiveUpLease(pull.epoch);
  }
  PullOutcome outcome;
  outcome.result = result;
  outcome.why = why;
  End(id, std::move(outcome));
}

void PrefixPuller::End(uint64_t id, PullOutcome outcome) {
  const auto it = pulls_.find(id);
  const Pull pull = std::move(it->second);
  pulls_.erase(it);
  outcome.holder = pull.holder;
  outcome.began = pull.began;
  outcome.ended = deps_.clock->Now();
  Log(outcome.result == v1::PrefixPull::FAILED ? LogLevel::kWarning : LogLevel::kDebug,
      "prefix pulled",
      {{"request", pull.request.trace_id()},
       {"holder", pull.holder},
       {"tokens", outcome.tokens},
       {"ms", ToMs(outcome.ended - outcome.began)},
       {"error", outcome.why}});
  Count(outcome);
  if (pull.waiters > 0) deps_.listener->OnPulled(id, outcome);
}

void PrefixPuller::Count(const PullOutcome& outcome) {
  const auto counter = results_.find(outcome.result);
  if (counter != results_.end()) counter->second.Add();
  if (outcome.result != v1::PrefixPull::FILLED) return;
  tokens_.Add(outcome.tokens);
  bytes_.Add(static_cast<double>(outcome.bytes));
  seconds_.Observe(ToSeconds(outcome.moving));
}

Instant PrefixPuller::NextTimer() const {
  Instant next = kNever;
  for (const auto& [id, pull] : pulls_)
    next = std::min(
        next, pull.phase == Phase::kBegun ? pull.over_by : std::min(pull.begin_by, pull.over_by));
  return next;
}

void PrefixPuller::OnTimer(Instant now) {
  std::vector<std::pair<uint64_t, bool>> late;
  for (const auto& [id, pull] : pulls_) {
    const bool begun = pull.phase == Phase::kBegun;
    if (now >= pull.over_by || (!begun && now >= pull.begin_by)) late.emplace_back(id, begun);
  }
  for (const auto& [id, begun] : late) {
    Drop(
        id, v1::PrefixPull::LATE,
        begun ? "the prefix did not come in time" : "the pull of the prefix did not begin in time");
  }
}

}  // namespace aisp
