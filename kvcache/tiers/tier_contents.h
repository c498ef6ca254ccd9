// TierContents: what one tier holds, in the units by which routers know prefixes
// (common/prefix_hash.h), as numbered events and as a snapshot. Slots are those of the tier's
// TierIndex, which identifies blocks by TierKey.
//
// Blocks that differ late share their first units: those are counted, and removed with the last
// block that has them. Blocks with unknown units are not reported. Owned by the engine thread.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "common/hash.h"
#include "kvcache/event_log.h"
#include "kvcache/kv_cache_event.h"
#include "kvcache/tiers/tier_io.h"

namespace aisp {

class TierContents {
 public:
  TierContents(int32_t slots, int32_t block_tokens);

  // `slot` will hold a block of these units; its old content is gone.
  void Take(int32_t slot, const BlockUnits& units);
  // The slot's block is complete.
  void Filled(int32_t slot);
  // The slot is empty.
  void Drop(int32_t slot);
  const BlockUnits& UnitsOf(int32_t slot) const { return slots_[Index(slot)].units; }

  // As BlockManager's.
  std::vector<KvCacheEvent> TakeEvents(uint64_t* first_sequence);
  // At most kMostSnapshotUnits units, so that a snapshot fits into a message.
  std::vector<KvCacheEvent> SnapshotEvents(uint64_t* next_sequence) const;

  static constexpr size_t kMostSnapshotUnits = 256 * 1024;

 private:
  struct Slot {
    BlockUnits units{};
    bool told = false;
  };
  size_t Index(int32_t slot) const;

  const size_t units_;  // per block
  std::vector<Slot> slots_;
  std::unordered_map<Hash128, int32_t> blocks_with_;  // by unit
  EventLog events_;
};

}  // namespace aisp
