// Sequences whose KV a remote reader reads (prefill-only) or a remote writer fills (remote).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "engine/engine_impl.h"
#include "engine/fair_order.h"

namespace aisp {

bool Engine::Impl::TakeBlocks(Sequence& s, int32_t tokens, int32_t match_limit, int32_t keep_free) {
  AISP_CHECK(s.blocks.empty());
  PartialMatch partial;
  s.blocks = blocks.MatchAndPin(s.root, s.request.tokens, std::max(0, match_limit), &partial);
  // If published blocks exist beyond the match limit, this sequence computes its own copies. It
  // does not publish below the originals, which then could not be evicted while it runs.
  const int32_t whole = tokens - 1;
  s.publishes =
      match_limit >= whole || blocks.MatchLength(s.root, s.request.tokens, whole) <= match_limit;
  const auto matched = static_cast<int32_t>(s.blocks.size());
  const int32_t needed = BlocksFor(tokens) - matched;
  const auto fits = [&] { return needed == 0 || needed + keep_free <= blocks.Available(); };
  s.computed = matched * BlockTokens();
  if (const int32_t copied = CopiedTokens(s, s.computed, match_limit, partial); copied > 0) {
    blocks.Pin({&partial.block, 1}, PinKind::kSequence);
    s.copied = {partial.block, s.computed + copied, /*pinned=*/true};
    if (!fits()) DropCopy(s);
  }
  if (!fits() || !Grow(s, needed)) {
    DropCopy(s);
    s.computed = 0;
    blocks.Unpin(s.blocks, PinKind::kSequence);
    s.blocks.clear();
    return false;
  }
  s.published_blocks = matched;
  s.scheduled = s.copied ? s.copied->end : s.computed;
  // A refused grant or a restart after preemption does not count as another lookup.
  if (!std::exchange(s.lookup_counted, true))
    blocks.CountLookup(std::max(match_limit, s.scheduled), s.scheduled);
  return true;
}

// At least one token is left to compute. A copy moves a whole block and pins its source, so it is
// not made for the few tokens that most prompts share.
int32_t Engine::Impl::CopiedTokens(const Sequence& s, int32_t matched, int32_t match_limit,
                                   const PartialMatch& partial) const {
  constexpr int32_t kUnit = FeatureCache::kUnit;
  if (!executor->copies_blocks() || s.request.kv_source == KvSource::kRemote) return 0;
  int32_t copied = std::min(partial.tokens, std::min(match_limit, s.target() - 1) - matched);
  // Features are cached in whole units, whose tokens must all match.
  const bool known = (copied + kUnit - 1) / kUnit * kUnit <= partial.tokens;
  if (KeepsFeatures(s) && !known) copied -= copied % kUnit;
  return copied >= BlockTokens() / 4 ? copied : 0;
}

void Engine::Impl::EndCopy(Sequence& s) {
  if (s.copied && std::exchange(s.copied->pinned, false))
    blocks.Unpin({&s.copied->from, 1}, PinKind::kSequence);
}

void Engine::Impl::DropCopy(Sequence& s) {
  EndCopy(s);
  s.copied.reset();
}

// --- prefill-only ---

std::vector<SequenceId> Engine::Impl::UpcomingGated(int32_t horizon_tokens) const {
  // A prompt longer than the horizon leaves half of it to later ones, as in every step.
  int32_t room = horizon_tokens;
  const auto take = [&](int32_t tokens) {
    room -= tokens > horizon_tokens ? std::max(room / 2, BlockTokens()) : tokens;
  };
  for (const Sequence* s : table.running()) {
    if (const int32_t left = s->target() - s->scheduled; left > 1) take(left);
  }
  std::vector<SequenceId> upcoming;
  FairOrder order(table.shares(), table.waiting(), table.gated());
  for (const Sequence* s = order.Next(); s != nullptr && room > 0; s = order.Next()) {
    if (s->state == SequenceState::kGated) {
      upcoming.push_back(s->id);
      take(std::max(0, s->target() - s->match_hint));
    } else {
      take(s->target() - s->scheduled);
    }
  }
  return upcoming;
}

void Engine::Impl::OpenGate(SequenceId id) {
  Sequence* s = table.Find(id);
  if (s == nullptr || s->state != SequenceState::kGated) return;
  // Do not overtake sequences that wait for blocks. A prefix that a running sequence is computing
  // is better matched once published.
  const auto& waiting = table.waiting();
  const bool overtakes = std::any_of(waiting.begin(), waiting.end(), [s](const Sequence* w) {
    return w->blocks.empty() && Precedes(*w, *s);
  });
  const bool queue =
      s->target() > 0 && (overtakes || s->promotion != 0 || WaitsForPrefix(*s, s->match_hint));
  // One that draws computes its last token, whatever is cached.
  const int32_t limit = s->draws() ? s->target() - 1 : s->target();
  const bool taken = !queue && TakeBlocks(*s, s->target(), limit, Watermark());
  s->reported = s->computed;
  s->times.cached_tokens = s->scheduled;
  if (taken) TakeKeptFeatures(*s);
  if (taken && s->computed == s->target()) {
    s->times.first_scheduled = s->times.prefill_done = clock->Now();
    table.SetState(*s, SequenceState::kHolding);
    pending_prefills_done.push_back(id);
    return;
  }
  table.SetState(*s, SequenceState::kWaiting);
}

void Engine::Impl::Release(SequenceId id) { Cancel(id); }

// --- remote ---

int32_t Engine::Impl::LocalMatch(SequenceId id) const {
  const Sequence* s = table.Find(id);
  return s == nullptr ? 0 : blocks.MatchLength(s->root, s->request.tokens, s->size() - 1);
}

Result<RemoteGrant> Engine::Impl::GrantRemote(SequenceId id, bool with_token) {
  Sequence* s = table.Find(id);
  if (s == nullptr)
    return NotFound(fmt::format("sequence {} has ended; nothing to grant", id.value));
  if (s->state != SequenceState::kAwaitingKv || s->lease) {
    return FailedPrecondition(
        fmt::format("sequence {} does not wait for a grant of KV blocks", id.value));
  }
  // The sequence itself awaits KV, so the watermark is waived only when it is the only one.
  const int32_t keep_free =
      table.running().empty() && table.awaiting() == 1 ? 0 : limits.watermark_blocks;
  // With its first token it holds all blocks of its first row, like any sequence that waits only
  // for a row. If the pool could never hold them, it ends after that token.
  const int32_t own = BlocksFor(s->size());
  const int32_t next =
      std::min(BlocksFor(s->size() + (with_token ? 1 : 0)), blocks.layout().num_blocks) - own;
  if (!TakeBlocks(*s, s->size(), s->size() - 1, keep_free + next)) {
    return ResourceExhausted(
        fmt::format("{} tokens need {} KV blocks; {} of {} are free or evictable and {} are kept "
                    "for running sequences; try again "
                    "when some have finished",
                    s->size(), BlocksFor(s->size()), blocks.Available(), blocks.layout().num_blocks,
                    keep_free));
  }
  RemoteGrant grant;
  grant.epoch = Epoch(next_epoch++);
  grant.first_token = s->computed;
  grant.blocks.assign(s->blocks.begin() + s->published_blocks, s->blocks.end());
  AISP_CHECK(Grow(*s, next));
  blocks.BeginLease(grant.epoch, grant.blocks);
  s->lease = grant.epoch;
  s->times.cached_tokens = grant.first_token;
  return grant;
}

std::optional<TokenOutput> Engine::Impl::RemoteFilled(SequenceId id,
                                                      std::optional<SampledToken> drawn,
                                                      const PromptFeatures& features) {
  Sequence* s = table.Find(id);
  if (s == nullptr) return std::nullopt;
  AISP_CHECK_MSG(s->state == SequenceState::kAwaitingKv && s->lease,
                 "RemoteFilled without a grant");
  blocks.EndLease(*s->lease);
  s->lease.reset();
  s->computed = drawn ? s->size() : s->size() - 1;
  s->scheduled = s->computed;
  const Instant now = clock->Now();
  s->times.prefill_done = now;
  if (!drawn) {
    PublishWholeBlocks(*s);
    table.SetState(*s, SequenceState::kWaiting);
    TakeFeatures(*s, features);
    return std::nullopt;
  }
  std::vector<TokenOutput> out;
  if (AbsorbToken(*s, *drawn, now, &out)) {
    table.SetState(*s, SequenceState::kWaiting);
    TakeFeatures(*s, features);
  }
  return std::move(out.front());
}

void Engine::Impl::RemoteFailed(SequenceId id, bool run_locally) {
  Sequence* s = table.Find(id);
  if (s == nullptr || s->state != SequenceState::kAwaitingKv) return;
  DropBlocks(*s);
  s->lease.reset();
  s->computed = 0;
  s->scheduled = 0;
  s->published_blocks = 0;
  s->times.cached_tokens = 0;
  if (run_locally) {
    s->request.kv_source = KvSource::kLocal;
    table.SetState(*s, SequenceState::kWaiting);
  }
}

void Engine::Impl::EndLease(Epoch epoch) { blocks.EndLease(epoch); }

}  // namespace aisp
