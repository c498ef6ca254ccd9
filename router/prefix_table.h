// PrefixTable: a hash table keyed by the hashes of prefix units, for the millions of units that a
// router tracks. Open addressing in one array: a look-up costs about one cache miss; a node-based
// table costs three.
//
// `Entry` is a plain struct whose first member is `Hash128 key` and whose other members are zero in
// a new one. It grows a little with each change, so no request waits while millions of entries
// move. Clients choose prompts and so their hashes; positions therefore depend on a secret of this
// process.
//
// A pointer to an entry is valid until the next change. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <type_traits>
#include <utility>

#include "common/hash.h"

namespace aisp {

template <typename Entry>
class PrefixTable {
 public:
  static_assert(std::is_trivially_copyable_v<Entry>);

  size_t size() const { return now_.count + old_.count; }
  bool empty() const { return size() == 0; }

  const Entry* Find(const Hash128& key) const { return Find(Named(key), Mix(Named(key))); }
  Entry* Find(const Hash128& key) { return const_cast<Entry*>(std::as_const(*this).Find(key)); }

  // Returns the entry, and whether it is new.
  std::pair<Entry*, bool> Insert(const Hash128& wanted) {
    const Hash128 key = Named(wanted);
    const uint64_t mixed = Mix(key);
    MoveSome();
    if (const Entry* held = Find(key, mixed)) return {const_cast<Entry*>(held), false};
    if ((now_.count + 1) * 4 > now_.capacity * 3) Grow();
    Entry* fresh = &now_.entries[now_.PlaceOf(key, mixed)];
    fresh->key = key;
    ++now_.count;
    return {fresh, true};
  }

  bool Erase(const Hash128& wanted) {
    const Hash128 key = Named(wanted);
    const uint64_t mixed = Mix(key);
    MoveSome();
    for (Array* array : {&now_, &old_}) {
      if (array->count == 0) continue;
      const size_t place = array->PlaceOf(key, mixed);
      if (array->Free(place)) continue;
      array->EraseAt(place);
      return true;
    }
    return false;
  }

  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (const Array* array : {&now_, &old_}) {
      for (size_t i = 0; i < array->capacity; ++i) {
        if (!array->Free(i)) visit(array->entries[i]);
      }
    }
  }

  void Clear() {
    now_ = Array();
    old_ = Array();
    cursor_ = 0;
  }

 private:
  static constexpr size_t kLeastCapacity = 64;
  // Slots of the old array that each change empties: enough to empty it before the new array, twice
  // as large, is full.
  static constexpr int kMovedEach = 8;

  // The all-zero key marks a free slot. Only a crafted prompt hashes to it; such a key is replaced.
  static Hash128 Named(const Hash128& key) {
    return key == Hash128{} ? Hash128{0x9e3779b97f4a7c15, 1} : key;
  }
  static uint64_t Mix(const Hash128& key) {
    static const std::array<uint64_t, 2> secret = [] {
      std::random_device device;
      const auto word = [&device] { return (uint64_t{device()} << 32) | device(); };
      return std::array<uint64_t, 2>{word(), word() | 1};
    }();
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(key.lo ^ secret[0]) * ((key.hi ^ secret[1]) | 1);
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  struct Array {
    struct FreeMemory {
      void operator()(Entry* memory) const { std::free(memory); }
    };
    size_t capacity = 0;  // a power of two, or none
    size_t count = 0;
    std::unique_ptr<Entry[], FreeMemory> entries;

    Array() = default;
    explicit Array(size_t size) : capacity(size) {
      // calloc: the system zeroes pages on first use.
      entries.reset(static_cast<Entry*>(std::calloc(size, sizeof(Entry))));
      if (entries == nullptr) throw std::bad_alloc();
    }
    Array(Array&& other) noexcept { *this = std::move(other); }
    Array& operator=(Array&& other) noexcept {
      capacity = std::exchange(other.capacity, 0);
      count = std::exchange(other.count, 0);
      entries = std::move(other.entries);
      return *this;
    }
    bool Free(size_t place) const { return entries[place].key == Hash128{}; }
    size_t Next(size_t place) const { return (place + 1) & (capacity - 1); }
    // The key's slot, or the free slot for it.
    size_t PlaceOf(const Hash128& key, uint64_t mixed) const {
      size_t place = mixed & (capacity - 1);
      while (!Free(place) && entries[place].key != key) place = Next(place);
      return place;
    }
    // Moves later entries of the run into the hole, so that searches find no gap.
    void EraseAt(size_t hole) {
      for (size_t i = Next(hole); !Free(i); i = Next(i)) {
        const size_t home = Mix(entries[i].key) & (capacity - 1);
        if (((i - home) & (capacity - 1)) < ((i - hole) & (capacity - 1))) continue;
        entries[hole] = entries[i];
        hole = i;
      }
      entries[hole] = Entry{};
      --count;
    }
  };

  const Entry* Find(const Hash128& key, uint64_t mixed) const {
    for (const Array* array : {&now_, &old_}) {
      if (array->count == 0) continue;
      const size_t place = array->PlaceOf(key, mixed);
      if (!array->Free(place)) return &array->entries[place];
    }
    return nullptr;
  }

  void Grow() {
    while (old_.count > 0) MoveSome();
    old_ = std::move(now_);
    now_ = Array(old_.capacity == 0 ? kLeastCapacity : 2 * old_.capacity);
    cursor_ = 0;
  }

  // Empties a few slots of the old array, from its start. No entry before the cursor remains:
  // entries after a removed one were moved up.
  void MoveSome() {
    for (int i = 0; i < kMovedEach && old_.count > 0; ++i) {
      if (old_.Free(cursor_)) {
        ++cursor_;
        continue;
      }
      const Entry entry = old_.entries[cursor_];
      old_.EraseAt(cursor_);
      now_.entries[now_.PlaceOf(entry.key, Mix(entry.key))] = entry;
      ++now_.count;
    }
    if (old_.count == 0 && old_.capacity > 0) old_ = Array();
  }

  Array now_;
  Array old_;  // entries that have not moved yet
  size_t cursor_ = 0;
};

}  // namespace aisp
