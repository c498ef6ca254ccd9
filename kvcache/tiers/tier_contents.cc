#include "kvcache/tiers/tier_contents.h"

#include <utility>

#include "common/check.h"
#include "common/prefix_hash.h"

namespace aisp {
namespace {

constexpr int32_t kMaxEvents = 16384;
constexpr int32_t kMaxHashes = 128 * 1024;

}  // namespace

TierContents::TierContents(int32_t slots, int32_t block_tokens)
    : units_(static_cast<size_t>(block_tokens / kHashUnitTokens)),
      slots_(static_cast<size_t>(slots)),
      events_(kMaxEvents, kMaxHashes) {
  AISP_CHECK(units_ <= BlockUnits().size());
}

size_t TierContents::Index(int32_t slot) const {
  AISP_CHECK(slot >= 0 && static_cast<size_t>(slot) < slots_.size());
  return static_cast<size_t>(slot);
}

void TierContents::Take(int32_t slot, const BlockUnits& units) {
  Drop(slot);
  slots_[Index(slot)].units = units;
}

void TierContents::Filled(int32_t slot) {
  Slot& s = slots_[Index(slot)];
  AISP_CHECK(!s.told);
  if (s.units[0] == Hash128{}) return;
  s.told = true;
  KvCacheEvent stored;
  for (size_t i = 0; i < units_; ++i) {
    ++blocks_with_[s.units[i]];
    stored.unit_hashes.push_back(s.units[i]);
  }
  events_.Append(std::move(stored));
}

void TierContents::Drop(int32_t slot) {
  Slot& s = slots_[Index(slot)];
  if (std::exchange(s.told, false)) {
    KvCacheEvent removed{KvCacheEvent::Kind::kRemoved, {}};
    for (size_t i = 0; i < units_; ++i) {
      const auto it = blocks_with_.find(s.units[i]);
      AISP_CHECK(it != blocks_with_.end());
      if (--it->second > 0) continue;
      blocks_with_.erase(it);
      removed.unit_hashes.push_back(s.units[i]);
    }
    if (!removed.unit_hashes.empty()) events_.Append(std::move(removed));
  }
  s.units = {};
}

std::vector<KvCacheEvent> TierContents::TakeEvents(uint64_t* first_sequence) {
  return events_.Take(first_sequence);
}

std::vector<KvCacheEvent> TierContents::SnapshotEvents(uint64_t* next_sequence) const {
  *next_sequence = events_.next_sequence();
  KvCacheEvent all;
  for (const auto& [unit, blocks] : blocks_with_) {
    if (all.unit_hashes.size() == kMostSnapshotUnits) break;
    all.unit_hashes.push_back(unit);
  }
  if (all.unit_hashes.empty()) return {};
  return {std::move(all)};
}

}  // namespace aisp
