// TierIndex: which block is in which slot of one tier (host memory, disk), and which is evicted
// first.
//
// Evicts the block of least rank among those without children in the tier (a block is worthless
// without the preceding ones). A rank is the clock at the last use plus the block's recompute cost;
// the clock is the rank of the last evicted block: LRU weighted by cost (Cao and Irani, GreedyDual,
// 1997).
//
// A slot is free, being filled, or resident; a held slot (being read) is never evicted. Owned by
// the engine thread; moves no bytes. Costs O(log slots) per call.
#pragma once

#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "common/hash.h"
#include "kvcache/hash_table.h"

namespace aisp {

class TierIndex {
 public:
  static constexpr int32_t kNone = -1;

  explicit TierIndex(int32_t slots);

  int32_t slots() const { return static_cast<int32_t>(slots_.size()); }
  int32_t used() const { return static_cast<int32_t>(by_key_.size()); }
  uint64_t evictions() const { return evictions_; }

  // Resident or being filled.
  bool Knows(const Hash128& key) const { return by_key_.Find(key) != HashTable::kAbsent; }
  // The slot of a resident block, else kNone.
  int32_t Find(const Hash128& key) const;
  const Hash128& KeyOf(int32_t slot) const { return slots_[Index(slot)].key; }

  // A slot to fill with `key` (not yet known), below `parent` if that is here; `cost` > 0. Evicts a
  // block if none is free; kNone: all candidates are held or needed.
  int32_t Take(const Hash128& key, const Hash128& parent, double cost);
  // At start: records what a disk already holds in this free slot. False: the key is already known.
  bool Restore(int32_t slot, const Hash128& key, const Hash128& parent, double cost);
  // The slot from Take is complete.
  void Filled(int32_t slot);
  // It could not be filled, or its content is wrong. It is not held.
  void Drop(int32_t slot);
  void Touch(int32_t slot);
  void Hold(int32_t slot);
  void Unhold(int32_t slot);
  bool Held(int32_t slot) const { return slots_[Index(slot)].holds > 0; }

  // Aborts on a violated invariant. For tests and the simulation.
  void CheckInvariants() const;

 private:
  enum class State : uint8_t { kFree, kFilling, kResident };
  struct Slot {
    Hash128 key;
    double rank = 0;
    double cost = 1;
    uint64_t used = 0;  // breaks ties: older first
    int32_t parent = kNone;
    uint32_t parent_generation = 0;
    uint32_t generation = 0;  // counts contents
    int32_t children = 0;
    int32_t holds = 0;
    State state = State::kFree;
  };
  using Rank = std::tuple<double, uint64_t, int32_t>;

  size_t Index(int32_t slot) const;
  Rank RankOf(int32_t slot) const;
  bool Evictable(const Slot& s) const {
    return s.state == State::kResident && s.children == 0 && s.holds == 0;
  }
  // Called around changes of Evictable or the rank.
  void Unlist(int32_t slot);
  void List(int32_t slot);
  void Occupy(int32_t slot, const Hash128& key, int32_t parent, double cost, State state);
  void Vacate(int32_t slot);

  std::vector<Slot> slots_;
  std::vector<int32_t> free_;
  std::set<Rank> evictable_;
  HashTable by_key_;
  double clock_ = 0;
  uint64_t uses_ = 0;
  uint64_t evictions_ = 0;
};

}  // namespace aisp
