// Earley: parses a text byte by byte according to a Grammar (Earley 1970; nullable rules as in
// Aycock and Horspool 2002, right recursion as in Leo 1991). A set holds all items that may be open
// after a byte. Every production can be completed, so a non-empty set has a way to the end.
//
// Sets form a stack: rewinding drops the last ones. One thread at a time.
#pragma once

#include <bitset>
#include <memory>
#include <vector>

#include "constrain/grammar.h"
#include "constrain/stamped_set.h"

namespace aisp {

struct EarleySet;

struct EarleyItem {
  // Values of `rule` when no rule follows the dot: the production's end, or a terminal.
  static constexpr int32_t kNone = -1, kTerminal = -2;
  int32_t production = 0;
  int32_t dot = 0;
  int32_t state = 0;     // of the terminal after the dot
  int32_t rule = kNone;  // after the dot
  const EarleySet* origin = nullptr;
  friend bool operator==(const EarleyItem&, const EarleyItem&) = default;
};

inline uint64_t HashOf(const EarleyItem& item) {
  const uint64_t place =
      static_cast<uint64_t>(item.production) << 32 | static_cast<uint32_t>(item.dot);
  return MixHash(MixHash(place, static_cast<uint32_t>(item.state)),
                 reinterpret_cast<uintptr_t>(item.origin));
}

struct EarleySet {
  std::vector<EarleyItem> items;
  std::bitset<256> first;  // bytes that may follow
  bool whole = false;      // the text may be complete here
};

class Earley {
 public:
  // Limit of a set, far above what texts of sensible grammars reach. A byte that would exceed it
  // may not follow.
  static constexpr size_t kMaxItems = 20'000;
  // Limit of the items that consumed a token's last byte, which are alternatives at one position.
  static constexpr size_t kMaxAlternatives = 1000;

  explicit Earley(Grammar* grammar) : g_(*grammar) {}

  const EarleySet* Start();
  // The set in which `rule` starts on its own: its productions' origin is Outside().
  const EarleySet* StartOf(int32_t rule);
  const EarleySet* Outside() const { return &outside_; }
  // Null when `byte` may not follow.
  const EarleySet* Step(const EarleySet& from, uint8_t byte);
  // `set`, or a copy with only its first kMaxAlternatives alternatives.
  const EarleySet* Narrowed(const EarleySet& set);
  // The symbol after the dot; null at the production's end.
  const GrammarSymbol* Behind(const EarleyItem& item) const;

  size_t size() const { return used_; }
  void Reset(size_t size) { used_ = size; }

 private:
  EarleySet* New();
  void Add(EarleySet* set, const EarleyItem& item);
  void Advance(EarleySet* set, const EarleyItem& item);
  void Complete(EarleySet* set, int32_t rule, const EarleySet* origin);
  void Predict(EarleySet* set, size_t rule);
  bool Close(EarleySet* set);

  Grammar& g_;
  std::vector<std::unique_ptr<EarleySet>> sets_;
  size_t used_ = 0;
  const EarleySet* start_ = nullptr;
  const EarleySet outside_ = {};
  std::vector<uint32_t> predicted_;  // by rule: the last closure that predicted it
  uint32_t closure_ = 0;
  // Of the set under construction: its items, and the rules completed with their origins.
  StampedSet<EarleyItem> added_, ended_;
};

}  // namespace aisp
