// Prefixes that another worker writes into this pool's cache.
#include <fmt/format.h>

#include <utility>

#include "common/check.h"
#include "engine/engine_impl.h"

namespace aisp {

Result<RemoteGrant> Engine::Impl::GrantPrefix(const Hash128& root, std::span<const TokenId> tokens,
                                              int32_t end_token) {
  const int32_t block_tokens = BlockTokens();
  AISP_CHECK(end_token > 0 && end_token % block_tokens == 0 &&
             end_token <= static_cast<int32_t>(tokens.size()));
  if (!failed) return tl::unexpected(failed.error());
  PulledPrefix prefix;
  prefix.root = root;
  prefix.tokens.assign(tokens.begin(), tokens.begin() + end_token);
  prefix.blocks = blocks.MatchAndPin(root, prefix.tokens, end_token);
  blocks.Pin(prefix.blocks, PinKind::kTier);
  blocks.Unpin(prefix.blocks, PinKind::kSequence);
  prefix.matched = static_cast<int32_t>(prefix.blocks.size());
  const int32_t needed = end_token / block_tokens - prefix.matched;
  const bool room = needed > 0 && needed + Watermark() <= blocks.Available();
  Result<Reservation> reserved = room ? blocks.Reserve(needed) : Reservation();
  if (!room || !reserved) {
    blocks.Unpin(prefix.blocks, PinKind::kTier);
    if (needed <= 0) {
      return FailedPrecondition(
          fmt::format("all {} tokens of the prefix are cached here by now", end_token));
    }
    return ResourceExhausted(fmt::format(
        "a prefix of {} tokens needs {} KV blocks; {} of {} are free or evictable and {} are kept "
        "for running sequences; it is computed when there is room",
        end_token, needed, blocks.Available(), blocks.layout().num_blocks, Watermark()));
  }
  RemoteGrant grant;
  grant.epoch = Epoch(next_epoch++);
  grant.first_token = prefix.matched * block_tokens;
  grant.blocks = reserved->Take(PinKind::kTier);
  prefix.blocks.insert(prefix.blocks.end(), grant.blocks.begin(), grant.blocks.end());
  blocks.BeginLease(grant.epoch, grant.blocks);
  pulled.emplace(grant.epoch, std::move(prefix));
  return grant;
}

std::span<const BlockId> Engine::Impl::PrefixBlocks(Epoch epoch) const {
  const auto it = pulled.find(epoch);
  if (it == pulled.end()) return {};
  return std::span(it->second.blocks).subspan(static_cast<size_t>(it->second.matched));
}

void Engine::Impl::PrefixFilled(Epoch epoch, int32_t end_token) {
  const auto it = pulled.find(epoch);
  AISP_CHECK_MSG(it != pulled.end(), "a prefix arrived that was not granted");
  const PulledPrefix& prefix = it->second;
  AISP_CHECK(end_token % BlockTokens() == 0);
  const auto tokens = std::span<const TokenId>(prefix.tokens).first(static_cast<size_t>(end_token));
  const auto filled =
      std::span<const BlockId>(prefix.blocks).first(static_cast<size_t>(end_token / BlockTokens()));
  blocks.EndLease(epoch);
  if (!prefix.publishes) return DropPrefix(epoch);
  blocks.Publish(prefix.root, tokens, filled, prefix.matched);
  if (tiers) {
    std::vector<Hash128> keys;
    tiers->ExtendKeys(prefix.root, tokens, &keys);
    tiers->Store(keys, filled, prefix.matched);
  }
  DropPrefix(epoch);
}

void Engine::Impl::DropPrefix(Epoch epoch) {
  const auto it = pulled.find(epoch);
  if (it == pulled.end()) return;
  blocks.Unpin(it->second.blocks, PinKind::kTier);
  pulled.erase(it);
}

}  // namespace aisp
