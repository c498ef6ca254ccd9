// PrefixDirectory: which workers hold which units of prompts, for all workers in one search. Each
// group of workers that hold equally much needs about log2(units) look-ups, not each worker.
//
// The content belongs to PrefixViews, which add and remove their own entries. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "common/hash.h"
#include "router/prefix_table.h"

namespace aisp {

class PrefixDirectory {
 public:
  // Further workers get no slot and are searched one by one.
  static constexpr size_t kMaxSlots = 1024;

  std::optional<uint16_t> TakeSlot();
  // The slot must hold no units.
  void FreeSlot(uint16_t slot);
  void Add(const Hash128& unit, uint16_t slot);
  void Remove(const Hash128& unit, uint16_t slot);

  // For each slot, the number of leading prompt units that its worker holds, by bisection as in
  // PrefixView::MatchUnits. (*held)[slot]; as long as the highest slot in use.
  void Match(std::span<const Hash128> units, std::vector<int32_t>* held) const;
  size_t units() const { return holders_.size(); }

 private:
  static constexpr size_t kWords = kMaxSlots / 64;
  static constexpr size_t kFew = 4;
  static constexpr uint16_t kMany = 0xFFFF;
  using Slots = std::array<uint64_t, kWords>;
  // Nearly all units have few holders: their slots plus one, padded with zeros. With more holders
  // the last entry is kMany, and the first two are an index into many_.
  struct Holders {
    Hash128 key;
    std::array<uint16_t, kFew> few{};

    bool many() const { return few.back() == kMany; }
    size_t place() const { return few[0] | size_t{few[1]} << 16; }
  };
  // Workers that hold the units before `low`, but not all before `high`.
  struct Group {
    size_t low;
    size_t high;
    Slots slots;
  };

  void MakeMany(Holders* holders);
  // Moves the members of `group` that hold `unit` to `with`.
  void Split(const Hash128& unit, size_t words, Group* group, Slots* with) const;

  PrefixTable<Holders> holders_;
  std::deque<Slots> many_;
  std::vector<size_t> free_many_;
  std::vector<uint16_t> free_;
  uint16_t slots_ = 0;  // highest number of slots used so far
  Slots taken_{};
};

}  // namespace aisp
