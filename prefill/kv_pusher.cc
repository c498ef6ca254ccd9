#include "prefill/kv_pusher.h"

#include <algorithm>
#include <array>

#include "common/check.h"
#include "prefill/push_plan.h"

namespace aisp {
namespace {

// Delay before retrying a write that a transport refused, unless a completion comes first.
constexpr Duration kRetryInterval = std::chrono::milliseconds(1);
// Limits of layers joined into one write. Ending a push waits for started writes.
constexpr uint64_t kJoinedBytes = uint64_t{32} << 20;
constexpr size_t kJoinedCopies = 1024;

}  // namespace

KvPusher::KvPusher(BlockManager* blocks, const Clock* clock, std::byte* pool)
    : blocks_(blocks), clock_(clock), staging_(blocks, pool) {}

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
  AISP_CHECK(target.first_token % target.layout.block_tokens == 0);
  Result<KvConversion> plan = KvConversion::Plan(blocks_->layout(), target.layout);
  AISP_CHECK_MSG(plan.has_value(), "its reader was to be refused");
  push.conversion = *plan;
  push.next_token.assign(static_cast<size_t>(target.layout.num_layers), target.first_token);
  push.target = std::move(target);
  Push& opened = pushes_.emplace(id, std::move(push)).first->second;
  if (opened.conversion.converts()) {
    const Status room =
        staging_.Open(opened.conversion, blocks_->layout().BlocksFor(opened.target.end_token));
    opened.staged = room.has_value();
    if (!room) {
      Abort(id, opened, room.error());
      retry_at_ = clock_->Now();
    }
  }
  return id;
}

void KvPusher::Ready(PushId id, int32_t layer, int32_t ready_tokens,
                     std::span<const BlockId> local) {
  Push& push = Get(id);
  if (push.stopped) return;
  Append(push, layer, ready_tokens, local);
  StartPending(id, push);
}

void KvPusher::ReadyAllLayers(PushId id, int32_t ready_tokens, std::span<const BlockId> local) {
  Push& push = Get(id);
  if (push.stopped) return;
  for (int32_t layer = 0; layer < push.target.layout.num_layers && !push.stopped; ++layer) {
    Append(push, layer, ready_tokens, local);
    if (layer > 0) JoinLast(push);
    // The last one may grow; those before it are written while the rest is planned.
    StartPending(id, push, /*keep=*/1);
  }
  StartPending(id, push);
}

void KvPusher::JoinLast(Push& push) {
  if (push.pending.size() < 2) return;
  const PendingWrite& last = push.pending.back();
  PendingWrite& before = push.pending[push.pending.size() - 2];
  if (last.copies.empty() || before.copies.empty() || before.begin != last.begin ||
      before.end != last.end || before.layer + before.layers != last.layer ||
      before.bytes + last.bytes > kJoinedBytes ||
      before.copies.size() + last.copies.size() > kJoinedCopies) {
    return;
  }
  before.copies.insert(before.copies.end(), last.copies.begin(), last.copies.end());
  before.bytes += last.bytes;
  before.layers += last.layers;
  LetGo(last);  // the other write pins the same blocks
  push.pending.pop_back();
}

void KvPusher::Append(Push& push, int32_t layer, int32_t ready_tokens,
                      std::span<const BlockId> local) {
  const PushTarget& target = push.target;
  const int32_t block_tokens = target.layout.block_tokens;
  int32_t& next = push.next_token[static_cast<size_t>(layer)];
  const int32_t blocks = PushableBlocks(target.layout, ready_tokens, target.end_token);
  const int32_t end = std::min(blocks * block_tokens, target.end_token);
  if (end <= next) return;
  if (layer == 0) push.totals.blocks += static_cast<uint32_t>(target.layout.BlocksFor(end - next));
  // What is converted at once must fit the staging memory.
  int32_t most = end - next;
  if (push.conversion.converts())
    most = staging_.slots() / staging_.SlotsFor(target.layout) * block_tokens;
  AISP_CHECK_MSG(most > 0, "a reader whose KV is converted without staging memory");
  while (next < end) {
    const int32_t until = end - next > most ? next + most : end;
    push.pending.push_back(MakeWrite(push, layer, next, until, local));
    next = until;
  }
}

KvPusher::PendingWrite KvPusher::MakeWrite(const Push& push, int32_t layer, int32_t begin,
                                           int32_t end, std::span<const BlockId> local) {
  const PushTarget& target = push.target;
  const KvLayout& own = blocks_->layout();
  const auto part = [](std::span<const BlockId> all, int32_t tokens, int32_t from, int32_t to) {
    const int32_t first = from / tokens;
    return all.subspan(static_cast<size_t>(first),
                       static_cast<size_t>((to + tokens - 1) / tokens - first));
  };
  const std::span<const BlockId> src = part(local, own.block_tokens, begin, end);
  const std::span<const BlockId> dst = part(target.blocks, target.layout.block_tokens,
                                            begin - target.first_token, end - target.first_token);
  PendingWrite write;
  write.sources.assign(src.begin(), src.end());
  write.layer = layer;
  write.begin = begin;
  write.end = end;
  if (push.conversion.whole()) {
    write.copies = PlanLayerCopies(own, target.layout, layer, src, dst);
  } else if (!push.conversion.converts()) {
    write.copies = PlanRowCopies(own, target.layout, layer, begin, end, local, target.blocks,
                                 target.first_token);
  }
  for (const BlockCopy& copy : write.copies) write.bytes += copy.bytes;
  blocks_->Pin(write.sources, PinKind::kStep);
  return write;
}

bool KvPusher::Convert(PushId id, const Push& push, PendingWrite& write) {
  if (next_staged_ && *next_staged_ != id) return false;
  const PushTarget& target = push.target;
  const int32_t block_tokens = target.layout.block_tokens;
  const int32_t each = staging_.SlotsFor(target.layout);
  const int32_t count = target.layout.BlocksFor(write.end - write.begin);
  write.slots = staging_.Take(count * each);
  next_staged_ = write.slots.empty() ? std::optional(id) : std::nullopt;
  if (write.slots.empty()) return false;
  const Instant began = clock_->Now();
  // MakeBlock counts blocks from the sequence's first one.
  const int32_t skipped = write.begin / blocks_->layout().block_tokens;
  const int32_t shift = skipped * blocks_->layout().block_tokens;
  made_.resize(target.layout.LayerBlockBytes());
  for (int32_t i = 0; i < count; ++i) {
    const int32_t begin = write.begin + i * block_tokens;
    const int32_t end = std::min(write.end, begin + block_tokens);
    push.conversion.MakeBlock(staging_.pool(), write.layer, write.sources, begin, end, shift,
                              made_.data());
    const BlockId to =
        target.blocks[static_cast<size_t>((begin - target.first_token) / block_tokens)];
    staging_.Fill(
        std::span(write.slots)
            .subspan(static_cast<size_t>(i) * static_cast<size_t>(each), static_cast<size_t>(each)),
        made_, target.layout.Offset(write.layer, to), &write.copies);
    write.bytes += made_.size();
  }
  conversions_.bytes.Add(static_cast<double>(write.bytes));
  conversions_.seconds.Add(ToSeconds(clock_->Now() - began));
  return true;
}

void KvPusher::StartPending(PushId id, Push& push, size_t keep) {
  while (push.pending.size() > keep) {
    const Instant now = clock_->Now();
    if (now >= push.target.lease_end) {
      Abort(id, push, Error{Code::kDeadlineExceeded, "the lease ended before all KV was written"});
      return;
    }
    PendingWrite& write = push.pending.front();
    if (write.copies.empty() && !Convert(id, push, write)) {
      retry_at_ = std::min(retry_at_, now + kRetryInterval);
      return;
    }
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
    push.totals.first_start = std::min(push.totals.first_start, now);
    push.pending.pop_front();
  }
}

void KvPusher::Abort(PushId id, Push& push, Error why) {
  if (push.failure) push.failure = tl::unexpected(std::move(why));
  push.stopped = true;
  DropPending(id, push);
  changed_.push_back(id);
}

void KvPusher::LetGo(const PendingWrite& write) {
  blocks_->Unpin(write.sources, PinKind::kStep);
  staging_.GiveBack(write.slots);
}

void KvPusher::DropPending(PushId id, Push& push) {
  for (const PendingWrite& write : push.pending) LetGo(write);
  push.pending.clear();
  if (next_staged_ == id) next_staged_.reset();
}

void KvPusher::Stop(PushId id) {
  Push& push = Get(id);
  push.stopped = true;
  DropPending(id, push);
  if (push.outstanding > 0)
    push.target.transport->CancelWrites(push.target.peer, push.target.epoch);
}

void KvPusher::Close(PushId id) {
  AISP_CHECK(Idle(id));
  const bool staged = Get(id).staged;
  pushes_.erase(id);
  if (staged) staging_.Close();
}

bool KvPusher::Idle(PushId id) const {
  const Push& push = Get(id);
  return push.outstanding == 0 && push.pending.empty();
}

bool KvPusher::Complete(PushId id) const {
  const Push& push = Get(id);
  if (!push.failure || push.stopped || !Idle(id)) return false;
  const int32_t end = push.target.end_token;
  return std::all_of(push.next_token.begin(), push.next_token.end(),
                     [end](int32_t next) { return next >= end; });
}

const Status& KvPusher::Failure(PushId id) const { return Get(id).failure; }
const PushTotals& KvPusher::Totals(PushId id) const { return Get(id).totals; }

void KvPusher::Measure(const KvTransport* transport, const Outstanding& done, bool ok,
                       Instant now) {
  const auto found = lanes_.find(transport);
  if (found == lanes_.end()) return;
  Lane& lane = found->second;
  // Writes overlap, so each adds only time that no earlier one has added.
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
  LetGo(done.write);
  Push& push = Get(done.push);
  --push.outstanding;
  changed_.push_back(done.push);
  const Instant now = clock_->Now();
  Measure(transport, done, completion.status.has_value(), now);
  if (!completion.status) {
    // Cancelled writes of a stopped push are expected.
    if (!push.stopped) Abort(done.push, push, completion.status.error());
    return;
  }
  push.totals.token_layers += static_cast<uint64_t>(done.write.end - done.write.begin) *
                              static_cast<uint64_t>(done.write.layers);
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

bool KvPusher::ExpectsSoon() const {
  return std::ranges::any_of(outstanding_, [](const auto& lane) {
    return !lane.second.empty() && lane.first->capabilities().notes;
  });
}

Instant KvPusher::NextTimer() const { return retry_at_; }

}  // namespace aisp
