// HashTable: Hash128 -> int32 with a fixed number of slots; no allocation after construction.
//
// Open addressing with linear probing at a load of at most one half. Erasing shifts later entries
// back, so there are no tombstones and lookups stay short. Keys are already uniform hashes. One
// thread.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "common/check.h"
#include "common/hash.h"

namespace aisp {

class HashTable {
 public:
  static constexpr int32_t kAbsent = -1;

  explicit HashTable(size_t max_entries)
      : max_entries_(max_entries), slots_(std::bit_ceil(max_entries * 2 + 2)) {}

  size_t size() const { return size_; }

  int32_t Find(const Hash128& key) const { return slots_[Probe(key)].value; }

  // The key's value, writable; kAbsent for a new key, and must then be set to a value >= 0.
  int32_t& FindOrInsert(const Hash128& key) {
    Slot& slot = slots_[Probe(key)];
    if (slot.value == kAbsent) {
      AISP_CHECK(size_ < max_entries_);
      ++size_;
      slot.key = key;
    }
    return slot.value;
  }

  // The key must exist.
  void Erase(const Hash128& key) {
    size_t hole = Probe(key);
    AISP_CHECK(slots_[hole].value != kAbsent);
    --size_;
    for (size_t i = Next(hole); slots_[i].value != kAbsent; i = Next(i)) {
      const size_t home = Home(slots_[i].key);
      // Entry i may move into the hole unless its home lies cyclically in (hole, i].
      if (((i - home) & Mask()) >= ((i - hole) & Mask())) {
        slots_[hole] = slots_[i];
        hole = i;
      }
    }
    slots_[hole].value = kAbsent;
  }

  void Clear() {
    for (Slot& slot : slots_) slot.value = kAbsent;
    size_ = 0;
  }

 private:
  struct Slot {
    Hash128 key;
    int32_t value = kAbsent;
  };
  size_t Mask() const { return slots_.size() - 1; }
  size_t Home(const Hash128& key) const { return key.lo & Mask(); }
  size_t Next(size_t i) const { return (i + 1) & Mask(); }
  // The slot of `key`, or the empty slot where it would be inserted.
  size_t Probe(const Hash128& key) const {
    size_t i = Home(key);
    while (slots_[i].value != kAbsent && slots_[i].key != key) i = Next(i);
    return i;
  }

  const size_t max_entries_;
  size_t size_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace aisp
