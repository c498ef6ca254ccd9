// PrefixDirectory: which workers hold which units of prompts, for all workers at once, so that one
// search answers for every worker: a prompt's units are looked up about log2(units) times for each
// group of workers that hold equally much, not for each worker.
//
// The content belongs to PrefixViews, which add and remove what is theirs. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/hash.h"

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
  using Slots = std::array<uint64_t, kWords>;
  // Most clusters fit into the first word.
  struct Holders {
    uint64_t first = 0;
    std::unique_ptr<Slots> all;  // null until a slot of 64 or more comes; then it counts alone
  };
  static bool Empty(const Holders& holders);

  std::unordered_map<Hash128, Holders> holders_;
  std::vector<uint16_t> free_;
  uint16_t slots_ = 0;  // ever taken
  Slots taken_{};
};

}  // namespace aisp
