// PrefixDirectory: which workers hold which units of prompts, for all workers at once, so that one
// search answers for every worker: a prompt's units are looked up about log2(units) times for each
// group of workers that hold equally much, not for each worker.
//
// The content belongs to PrefixViews, which add and remove what is theirs. One thread.
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
  // Workers beyond this number get no slot and are searched one by one.
  static constexpr size_t kMaxSlots = 1024;

  std::optional<uint16_t> TakeSlot();
  // Nothing may be left under it.
  void FreeSlot(uint16_t slot);
  void Add(const Hash128& unit, uint16_t slot);
  void Remove(const Hash128& unit, uint16_t slot);

  // For each slot the leading units of the prompt that its worker holds, found as
  // PrefixView::MatchUnits does: by bisection, since a worker drops the deepest units of a chain
  // first. (*held)[slot]; as long as the highest slot in use.
  void Match(std::span<const Hash128> units, std::vector<int32_t>* held) const;
  size_t units() const { return holders_.size(); }

 private:
  static constexpr size_t kWords = kMaxSlots / 64;
  static constexpr size_t kFew = 4;
  static constexpr uint16_t kMany = 0xFFFF;
  using Slots = std::array<uint64_t, kWords>;
  // Nearly all units are held by a few workers: their slots plus one, zeros behind them. Held by
  // more, the last of these is kMany and the first two are a place in many_.
  struct Holders {
    Hash128 key;
    std::array<uint16_t, kFew> few{};

    bool many() const { return few.back() == kMany; }
    size_t place() const { return few[0] | size_t{few[1]} << 16; }
  };
  // Workers that hold the units before `low`, and not all those before `high`.
  struct Group {
    size_t low;
    size_t high;
    Slots slots;
  };

  void MakeMany(Holders* holders);
  // Moves those of `group` that hold `unit` to `with`.
  void Split(const Hash128& unit, size_t words, Group* group, Slots* with) const;

  PrefixTable<Holders> holders_;
  std::deque<Slots> many_;
  std::vector<size_t> free_many_;
  std::vector<uint16_t> free_;
  uint16_t slots_ = 0;  // ever taken
  Slots taken_{};
};

}  // namespace aisp
