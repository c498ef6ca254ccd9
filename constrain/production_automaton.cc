#include "constrain/production_automaton.h"

#include <algorithm>

namespace aisp {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;

}  // namespace

int32_t ProductionAutomaton::StartOf(int32_t production, int32_t dot) {
  const uint64_t key = static_cast<uint64_t>(production) << 32 | static_cast<uint32_t>(dot);
  const auto [it, fresh] = starts_.try_emplace(key, kDead);
  if (fresh) {
    const EarleySet* set = earley_.StartAt(production, dot);
    if (set != nullptr) it->second = Keep(set);
  }
  return it->second;
}

int32_t ProductionAutomaton::MakeStep(int32_t state, uint8_t byte) {
  const EarleySet& from = *states_[static_cast<size_t>(state)].set;
  if (states_.size() >= limit_ && from.first.test(byte)) return kDead;
  const EarleySet* set = earley_.Step(from, byte);
  const int32_t next = set == nullptr ? kDead : Keep(set);
  (*states_[static_cast<size_t>(state)].row)[byte] = next;
  return next;
}

int32_t ProductionAutomaton::Keep(const EarleySet* set) {
  struct Entry {
    int32_t production, dot, state, origin;
    auto operator<=>(const Entry&) const = default;
  };
  constexpr int32_t kOwn = -1;
  std::vector<Entry> entries;
  entries.reserve(set->items.size());
  for (const EarleyItem& item : set->items) {
    const int32_t origin = item.origin == set ? kOwn : item.origin->number;
    entries.push_back({item.production, item.dot, item.state, origin});
  }
  std::sort(entries.begin(), entries.end());
  std::string key(reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(Entry));
  key += set->whole ? '1' : '0';
  const auto [it, fresh] =
      by_items_.try_emplace(std::move(key), static_cast<int32_t>(states_.size()));
  if (!fresh) {
    earley_.Reset(earley_.size() - 1);
    return it->second;
  }
  set->number = it->second;
  states_.push_back({set, std::make_unique<Row>()});
  states_.back().row->fill(kUnknown);
  bytes_ += sizeof(Row) + it->first.size() + set->items.size() * sizeof(EarleyItem) + 200;
  return it->second;
}

void ProductionAutomaton::Trim() {
  if (bytes_ < kMaxBytes) return;
  states_.clear();
  by_items_.clear();
  starts_.clear();
  earley_.Reset(0);
  bytes_ = 0;
}

}  // namespace aisp
