#include "router/prefix_directory.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace aisp {
namespace {

constexpr uint64_t Bit(uint16_t slot) { return uint64_t{1} << (slot % 64); }

}  // namespace

std::optional<uint16_t> PrefixDirectory::TakeSlot() {
  uint16_t slot = slots_;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (slots_ == kMaxSlots) {
    return std::nullopt;
  } else {
    ++slots_;
  }
  taken_[slot / 64] |= Bit(slot);
  return slot;
}

void PrefixDirectory::FreeSlot(uint16_t slot) {
  AISP_CHECK((taken_[slot / 64] & Bit(slot)) != 0);
  taken_[slot / 64] &= ~Bit(slot);
  free_.push_back(slot);
}

void PrefixDirectory::Add(const Hash128& unit, uint16_t slot) {
  Holders& holders = holders_[unit];
  if (slot >= 64 && !holders.all) {
    holders.all = std::make_unique<Slots>();
    (*holders.all)[0] = holders.first;
  }
  (holders.all ? (*holders.all)[slot / 64] : holders.first) |= Bit(slot);
}

bool PrefixDirectory::Empty(const Holders& holders) {
  if (!holders.all) return holders.first == 0;
  return std::all_of(holders.all->begin(), holders.all->end(), [](uint64_t w) { return w == 0; });
}

void PrefixDirectory::Remove(const Hash128& unit, uint16_t slot) {
  const auto it = holders_.find(unit);
  if (it == holders_.end()) return;
  Holders& holders = it->second;
  if (slot >= 64 && !holders.all) return;
  (holders.all ? (*holders.all)[slot / 64] : holders.first) &= ~Bit(slot);
  if (Empty(holders)) holders_.erase(it);
}

void PrefixDirectory::Match(std::span<const Hash128> units, std::vector<int32_t>* held) const {
  held->assign(slots_, 0);
  if (holders_.empty()) return;
  const size_t words = (slots_ + size_t{63}) / 64;
  // Workers that hold the units before `low`, and not all those before `high`.
  struct Group {
    size_t low, high;
    Slots slots;
  };
  std::vector<Group> groups = {{0, units.size(), taken_}};
  while (!groups.empty()) {
    Group group = groups.back();
    groups.pop_back();
    if (group.low == group.high) {
      for (size_t w = 0; w < words; ++w) {
        for (uint64_t left = group.slots[w]; left != 0; left &= left - 1)
          (*held)[w * 64 + static_cast<size_t>(std::countr_zero(left))] =
              static_cast<int32_t>(group.low);
      }
      continue;
    }
    const size_t middle = group.low + (group.high - group.low) / 2;
    Group with{middle + 1, group.high, {}};
    bool any_with = false, any_without = false;
    const auto it = holders_.find(units[middle]);
    for (size_t w = 0; w < words; ++w) {
      uint64_t holders = 0;
      if (it != holders_.end())
        holders = it->second.all ? (*it->second.all)[w] : (w == 0 ? it->second.first : 0);
      with.slots[w] = group.slots[w] & holders;
      group.slots[w] &= ~holders;
      any_with = any_with || with.slots[w] != 0;
      any_without = any_without || group.slots[w] != 0;
    }
    group.high = middle;
    if (any_without) groups.push_back(group);
    if (any_with) groups.push_back(with);
  }
}

}  // namespace aisp
