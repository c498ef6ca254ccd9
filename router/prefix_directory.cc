#include "router/prefix_directory.h"

#include <algorithm>
#include <bit>

#include "common/check.h"

namespace aisp {
namespace {

constexpr uint64_t Bit(uint16_t slot) { return uint64_t{1} << (slot % 64); }

// Each split leaves one half of a range on the stack.
constexpr size_t kMostGroups = 66;

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

void PrefixDirectory::MakeMany(Holders* holders) {
  if (free_many_.empty()) {
    free_many_.push_back(many_.size());
    many_.emplace_back();
  }
  const size_t place = free_many_.back();
  free_many_.pop_back();
  for (const uint16_t named : holders->few) {
    const auto slot = static_cast<uint16_t>(named - 1);
    many_[place][slot / 64] |= Bit(slot);
  }
  holders->few = {static_cast<uint16_t>(place & 0xFFFF), static_cast<uint16_t>(place >> 16), 0,
                  kMany};
}

void PrefixDirectory::Add(const Hash128& unit, uint16_t slot) {
  Holders* const holders = holders_.Insert(unit).first;
  if (!holders->many()) {
    for (uint16_t& named : holders->few) {
      if (named == slot + 1) return;
      if (named != 0) continue;
      named = static_cast<uint16_t>(slot + 1);
      return;
    }
    MakeMany(holders);
  }
  many_[holders->place()][slot / 64] |= Bit(slot);
}

void PrefixDirectory::Remove(const Hash128& unit, uint16_t slot) {
  Holders* const holders = holders_.Find(unit);
  if (holders == nullptr) return;
  if (holders->many()) {
    const size_t place = holders->place();
    Slots& slots = many_[place];
    slots[slot / 64] &= ~Bit(slot);
    if (std::any_of(slots.begin(), slots.end(), [](uint64_t word) { return word != 0; })) return;
    free_many_.push_back(place);
    holders_.Erase(unit);
    return;
  }
  auto& few = holders->few;
  const auto kept = std::remove(few.begin(), few.end(), static_cast<uint16_t>(slot + 1));
  std::fill(kept, few.end(), uint16_t{0});
  if (few.front() == 0) holders_.Erase(unit);
}

void PrefixDirectory::Split(const Hash128& unit, size_t words, Group* group, Slots* with) const {
  const Holders* const holders = holders_.Find(unit);
  if (holders == nullptr) return;
  if (holders->many()) {
    const Slots& all = many_[holders->place()];
    for (size_t w = 0; w < words; ++w) {
      (*with)[w] = group->slots[w] & all[w];
      group->slots[w] &= ~all[w];
    }
    return;
  }
  for (const uint16_t named : holders->few) {
    if (named == 0) break;
    const auto slot = static_cast<uint16_t>(named - 1);
    (*with)[slot / 64] |= group->slots[slot / 64] & Bit(slot);
    group->slots[slot / 64] &= ~Bit(slot);
  }
}

void PrefixDirectory::Match(std::span<const Hash128> units, std::vector<int32_t>* held) const {
  held->assign(slots_, 0);
  if (holders_.empty() || units.empty()) return;
  const size_t words = (slots_ + size_t{63}) / 64;
  const auto any = [words](const Slots& slots) {
    return std::any_of(slots.begin(), slots.begin() + static_cast<std::ptrdiff_t>(words),
                       [](uint64_t word) { return word != 0; });
  };
  std::array<Group, kMostGroups> groups;
  groups[0] = {0, units.size(), taken_};
  for (size_t count = 1; count > 0;) {
    Group& group = groups[count - 1];
    if (group.low == group.high) {
      for (size_t w = 0; w < words; ++w) {
        for (uint64_t left = group.slots[w]; left != 0; left &= left - 1)
          (*held)[w * 64 + static_cast<size_t>(std::countr_zero(left))] =
              static_cast<int32_t>(group.low);
      }
      --count;
      continue;
    }
    const size_t middle = group.low + (group.high - group.low) / 2;
    Group with{middle + 1, group.high, {}};
    Split(units[middle], words, &group, &with.slots);
    group.high = middle;
    if (!any(group.slots)) --count;
    if (any(with.slots)) groups[count++] = with;
  }
}

}  // namespace aisp
