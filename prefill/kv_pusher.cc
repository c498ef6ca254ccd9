#include "prefill/kv_pusher.h"

#include <algorithm>
#include <array>

#include "common/check.h"
#include "prefill/push_plan.h"

namespace aisp {
namespace {

// A transport that refused a write is asked again after so long, unless a completion comes first.
constexpr Duration kRetryInterval = std::chrono::milliseconds(1);

}  // namespace

KvPusher::KvPusher(BlockManager* blocks, const Clock* clock) : blocks_(blocks), clock_(clock) {}

KvPusher::Push& KvPusher::Get(PushId id) {
  const auto it = pushes_.find(id);
  AISP_CHECK(it != pushes_.end());
  return it->second;
}

const KvPusher::Push& KvPusher::Get(PushId id) const {
  const auto it = pushes_.find(id);
  AISP_CHECK(it != pushes_.end());
  return it->second;
}

PushId KvPusher::Open(PushTarget target) {
  const PushId id(++last_id_);
  Push push;
  const int32_t block_tokens = target.layout.block_tokens;
  AISP_CHECK(target.first_token % block_tokens == 0);
  push.next_block.assign(static_cast<size_t>(target.layout.num_layers),
                         target.first_token / block_tokens);
  push.target = std::move(target);
  pushes_.emplace(id, std::move(push));
  return id;
}

void KvPusher::Ready(PushId id, int32_t layer, int32_t ready_tokens,
                     std::span<const BlockId> local) {
  Push& push = Get(id);
  if (push.stopped) return;
  const PushTarget& target = push.target;
  const KvLayout& layout = blocks_->layout();
  int32_t& next = push.next_block[static_cast<size_t>(layer)];
  const int32_t end = PushableBlocks(layout, ready_tokens, target.end_token);
  if (end <= next) return;
  const int32_t first_block = target.first_token / layout.block_tokens;
  const auto count = static_cast<size_t>(end - next);
  const std::span<const BlockId> src = local.subspan(static_cast<size_t>(next), count);
  const auto dst = std::span<const BlockId>(target.blocks)
                       .subspan(static_cast<size_t>(next - first_block), count);

  PendingWrite write;
  write.copies = PlanLayerCopies(layout, target.layout, layer, src, dst);
  write.sources.assign(src.begin(), src.end());
  write.tokens = static_cast<uint64_t>(std::min(end * layout.block_tokens, target.end_token) -
                                       next * layout.block_tokens);
  write.bytes = count * layout.LayerBlockBytes();
  blocks_->Pin(write.sources, PinKind::kStep);
  if (layer == 0) push.totals.blocks += static_cast<uint32_t>(count);
  next = end;
  push.pending.push_back(std::move(write));
  StartPending(id, push);
}

void KvPusher::StartPending(PushId id, Push& push) {
  while (!push.pending.empty()) {
    const Instant now = clock_->Now();
    if (now >= push.target.lease_end) {
      Abort(id, push, Error{Code::kDeadlineExceeded, "the lease ended before all KV was written"});
      return;
    }
    PendingWrite& write = push.pending.front();
    KvTransport* transport = push.target.transport;
    Result<WriteId> started = transport->Write(push.target.peer, write.copies, push.target.epoch);
    if (!started) {
      if (started.error().code == Code::kResourceExhausted) {
        retry_at_ = std::min(retry_at_, now + kRetryInterval);
      } else {
        Abort(id, push, started.error());
      }
      return;
    }
    outstanding_[transport].emplace(*started, Outstanding{id, std::move(write), now});
    ++push.outstanding;
    push.pending.pop_front();
  }
}

void KvPusher::Abort(PushId id, Push& push, Error why) {
  if (push.failure) push.failure = tl::unexpected(std::move(why));
  push.stopped = true;
  DropPending(push);
  changed_.push_back(id);
}

void KvPusher::DropPending(Push& push) {
  for (const PendingWrite& write : push.pending) blocks_->Unpin(write.sources, PinKind::kStep);
  push.pending.clear();
}

void KvPusher::Stop(PushId id) {
  Push& push = Get(id);
  push.stopped = true;
  DropPending(push);
  if (push.outstanding > 0)
    push.target.transport->CancelWrites(push.target.peer, push.target.epoch);
}

void KvPusher::Close(PushId id) {
  AISP_CHECK(Idle(id));
  pushes_.erase(id);
}

bool KvPusher::Idle(PushId id) const {
  const Push& push = Get(id);
  return push.outstanding == 0 && push.pending.empty();
}

bool KvPusher::Complete(PushId id) const {
  const Push& push = Get(id);
  if (!push.failure || push.stopped || !Idle(id)) return false;
  const int32_t end = push.target.layout.BlocksFor(push.target.end_token);
  return std::all_of(push.next_block.begin(), push.next_block.end(),
                     [end](int32_t next) { return next >= end; });
}

const Status& KvPusher::Failure(PushId id) const { return Get(id).failure; }
const PushTotals& KvPusher::Totals(PushId id) const { return Get(id).totals; }

void KvPusher::Measure(const KvTransport* transport, const Outstanding& done, bool ok,
                       Instant now) {
  const auto found = lanes_.find(transport);
  if (found == lanes_.end()) return;
  Lane& lane = found->second;
  // Writes overlap: each adds the part of its time that no earlier one has added.
  const Instant from = std::max(done.started, lane.accounted);
  if (now > from) lane.metrics.busy_seconds.Add(ToSeconds(now - from));
  lane.accounted = std::max(lane.accounted, now);
  if (!ok) return lane.metrics.failed.Add();
  lane.metrics.bytes.Add(static_cast<double>(done.write.bytes));
  lane.metrics.write_seconds.Observe(ToSeconds(now - done.started));
}

void KvPusher::OnCompletion(KvTransport* transport, const WriteCompletion& completion) {
  auto& writes = outstanding_[transport];
  const auto it = writes.find(completion.id);
  AISP_CHECK_MSG(it != writes.end(), "a transport completed a write that was never started");
  const Outstanding done = std::move(it->second);
  writes.erase(it);
  blocks_->Unpin(done.write.sources, PinKind::kStep);
  Push& push = Get(done.push);
  --push.outstanding;
  changed_.push_back(done.push);
  const Instant now = clock_->Now();
  Measure(transport, done, completion.status.has_value(), now);
  if (!completion.status) {
    // A cancelled write of a stopped push is no news.
    if (!push.stopped) Abort(done.push, push, completion.status.error());
    return;
  }
  push.totals.token_layers += done.write.tokens;
  push.totals.bytes += done.write.bytes;
  push.totals.last_completion = now;
  const double seconds = std::max(ToSeconds(now - done.started), 1e-7);
  const double rate = static_cast<double>(done.write.bytes) / seconds;
  bytes_per_s_ = bytes_per_s_ == 0 ? rate : 0.9 * bytes_per_s_ + 0.1 * rate;
}

std::vector<PushId> KvPusher::Progress(std::span<KvTransport* const> transports) {
  std::array<WriteCompletion, 64> completions;
  for (KvTransport* transport : transports) {
    transport->Progress();
    size_t taken = 0;
    do {
      taken = transport->Poll(completions);
      for (size_t i = 0; i < taken; ++i) OnCompletion(transport, completions[i]);
    } while (taken == completions.size());
  }
  retry_at_ = kNever;
  for (auto& [id, push] : pushes_) {
    if (!push.pending.empty()) StartPending(id, push);
  }
  std::sort(changed_.begin(), changed_.end());
  changed_.erase(std::unique(changed_.begin(), changed_.end()), changed_.end());
  return std::exchange(changed_, {});
}

Instant KvPusher::NextTimer() const { return retry_at_; }

}  // namespace aisp
