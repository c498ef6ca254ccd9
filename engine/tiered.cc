// Prefix blocks in the tiers below the device pool: when they are fetched, and who waits for them.
#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"

namespace aisp {
namespace {

// Steps with fewer prompt tokens mostly measure a step's fixed cost.
constexpr int32_t kLeastMeasuredTokens = 64;

}  // namespace

// A remote sequence is not looked up: the worker that computes its KV has its own tiers.
void Engine::Impl::AskTiers(Sequence& s) {
  if (!tiers || s.request.kv_source == KvSource::kRemote) return;
  tiers->ExtendKeys(s.root, s.request.tokens, &s.tier_keys);
  // Its last token is always computed, which copies a block that holds it.
  const bool whole = !s.samples() || executor->copies_blocks();
  const int32_t limit = std::min(whole ? s.target() : s.target() - 1, s.match_limit());
  if (limit <= 0) return;
  const KvTiers::Waiting waiting =
      tiers->Promote(s.root, s.request.tokens, limit, s.tier_keys, Watermark());
  s.promotion = waiting.promotion;
  if (s.promotion == 0) return;
  s.promotion_until = waiting.until;
  tier_deadline = std::min(tier_deadline, waiting.until);
}

KvTiers::Waiting Engine::Impl::PromotePrefix(const Hash128& root, std::span<const TokenId> tokens) {
  if (!tiers || !failed) return {};
  std::vector<Hash128> keys;
  tiers->ExtendKeys(root, tokens, &keys);
  return tiers->Promote(root, tokens, static_cast<int32_t>(tokens.size()), keys, Watermark());
}

void Engine::Impl::OfferToTiers(Sequence& s, int32_t first, int32_t whole) {
  if (!tiers) return;
  tiers->ExtendKeys(s.root, s.request.tokens, &s.tier_keys);
  const auto count = static_cast<size_t>(whole);
  tiers->Store(std::span<const Hash128>(s.tier_keys).first(count),
               std::span<const BlockId>(s.blocks).first(count), first);
}

void Engine::Impl::PollTiers() {
  if (!tiers || !tiers->Poll()) return;
  for (const auto* queue : {&table.waiting(), &table.gated()}) {
    for (Sequence* s : *queue) {
      if (s->promotion == 0 || tiers->UnderWay(s->promotion)) continue;
      s->promotion = 0;
      ++tier_waits_ended;
    }
  }
}

// The promotion itself continues.
void Engine::Impl::ExpireTierWaits(Instant now) {
  if (now < tier_deadline) return;
  tier_deadline = kNever;
  for (const auto* queue : {&table.waiting(), &table.gated()}) {
    for (Sequence* s : *queue) {
      if (s->promotion == 0) continue;
      if (s->promotion_until <= now) {
        s->promotion = 0;
        ++tier_waits_ended;
      } else {
        tier_deadline = std::min(tier_deadline, s->promotion_until);
      }
    }
  }
}

void Engine::Impl::NotePrefillRate(const StepTiming& timing) {
  const int32_t tokens = timing.prefill_tokens;
  if (!tiers || tokens < kLeastMeasuredTokens || tokens < 4 * timing.decode_rows) return;
  tiers->NotePrefill(tokens, timing.device * tokens / (tokens + timing.decode_rows));
}

}  // namespace aisp
