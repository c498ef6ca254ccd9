#include "kvcache/tiers/tier_index.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace aisp {

TierIndex::TierIndex(int32_t slots)
    : slots_(static_cast<size_t>(slots)), by_key_(static_cast<size_t>(slots)) {
  free_.reserve(slots_.size());
  for (int32_t slot = slots - 1; slot >= 0; --slot) free_.push_back(slot);
}

size_t TierIndex::Index(int32_t slot) const {
  AISP_CHECK_MSG(slot >= 0 && static_cast<size_t>(slot) < slots_.size(), "slot outside the tier");
  return static_cast<size_t>(slot);
}

TierIndex::Rank TierIndex::RankOf(int32_t slot) const {
  const Slot& s = slots_[Index(slot)];
  return {s.rank, s.used, slot};
}

void TierIndex::Unlist(int32_t slot) {
  if (Evictable(slots_[Index(slot)])) evictable_.erase(RankOf(slot));
}

void TierIndex::List(int32_t slot) {
  if (Evictable(slots_[Index(slot)])) evictable_.insert(RankOf(slot));
}

int32_t TierIndex::Find(const Hash128& key) const {
  const int32_t slot = by_key_.Find(key);
  if (slot == HashTable::kAbsent) return kNone;
  return slots_[Index(slot)].state == State::kResident ? slot : kNone;
}

void TierIndex::Occupy(int32_t slot, const Hash128& key, int32_t parent, double cost, State state) {
  AISP_CHECK(cost > 0);
  Slot& s = slots_[Index(slot)];
  s.key = key;
  s.cost = cost;
  s.rank = clock_ + cost;
  s.used = ++uses_;
  s.state = state;
  s.parent = parent;
  if (parent != kNone) {
    Unlist(parent);
    ++slots_[Index(parent)].children;
    s.parent_generation = slots_[Index(parent)].generation;
  }
  by_key_.FindOrInsert(key) = slot;
}

int32_t TierIndex::Take(const Hash128& key, const Hash128& parent, double cost) {
  AISP_CHECK_MSG(!Knows(key), "a tier would hold one block twice");
  const int32_t before = by_key_.Find(parent);
  if (before != kNone) Hold(before);  // it must not be evicted for its own child
  if (free_.empty() && !evictable_.empty()) {
    const int32_t victim = std::get<2>(*evictable_.begin());
    clock_ = std::max(clock_, slots_[Index(victim)].rank);
    Unlist(victim);
    Vacate(victim);
    ++evictions_;
  }
  int32_t slot = kNone;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
    Occupy(slot, key, before, cost, State::kFilling);
  }
  if (before != kNone) Unhold(before);
  return slot;
}

bool TierIndex::Restore(int32_t slot, const Hash128& key, const Hash128& parent, double cost) {
  if (Knows(key) || slots_[Index(slot)].state != State::kFree) return false;
  const auto it = std::find(free_.begin(), free_.end(), slot);
  AISP_CHECK(it != free_.end());
  *it = free_.back();
  free_.pop_back();
  Occupy(slot, key, by_key_.Find(parent), cost, State::kResident);
  List(slot);
  return true;
}

void TierIndex::Filled(int32_t slot) {
  Slot& s = slots_[Index(slot)];
  AISP_CHECK(s.state == State::kFilling);
  s.state = State::kResident;
  List(slot);
}

void TierIndex::Drop(int32_t slot) {
  const Slot& s = slots_[Index(slot)];
  AISP_CHECK(s.state != State::kFree && s.holds == 0);
  Unlist(slot);
  Vacate(slot);
}

// Its children can no longer be found; they are evicted in their turn.
void TierIndex::Vacate(int32_t slot) {
  Slot& s = slots_[Index(slot)];
  by_key_.Erase(s.key);
  s.state = State::kFree;
  s.children = 0;
  ++s.generation;
  free_.push_back(slot);
  const int32_t parent = std::exchange(s.parent, kNone);
  if (parent == kNone) return;
  Slot& p = slots_[Index(parent)];
  if (p.state == State::kFree || p.generation != s.parent_generation) return;
  --p.children;
  List(parent);
}

void TierIndex::Touch(int32_t slot) {
  Unlist(slot);
  Slot& s = slots_[Index(slot)];
  s.rank = clock_ + s.cost;
  s.used = ++uses_;
  List(slot);
}

void TierIndex::Hold(int32_t slot) {
  Unlist(slot);
  ++slots_[Index(slot)].holds;
}

void TierIndex::Unhold(int32_t slot) {
  AISP_CHECK(slots_[Index(slot)].holds > 0);
  --slots_[Index(slot)].holds;
  List(slot);
}

void TierIndex::CheckInvariants() const {
  std::vector<int32_t> children(slots_.size(), 0);
  size_t used = 0;
  size_t evictable = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& s = slots_[i];
    const auto slot = static_cast<int32_t>(i);
    evictable += Evictable(s) ? 1 : 0;
    AISP_CHECK_MSG(Evictable(s) == evictable_.contains(RankOf(slot)), "the order is wrong");
    if (s.state == State::kFree) {
      AISP_CHECK_MSG(s.holds == 0 && s.children == 0, "a free slot is held");
      continue;
    }
    ++used;
    AISP_CHECK_MSG(by_key_.Find(s.key) == slot, "a block cannot be found");
    if (s.parent == kNone) continue;
    const Slot& p = slots_[Index(s.parent)];
    if (p.state != State::kFree && p.generation == s.parent_generation) ++children[Index(s.parent)];
  }
  for (size_t i = 0; i < slots_.size(); ++i) AISP_CHECK(children[i] == slots_[i].children);
  AISP_CHECK(used == by_key_.size() && used + free_.size() == slots_.size());
  AISP_CHECK(evictable == evictable_.size());
}

}  // namespace aisp
