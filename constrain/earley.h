// Earley: reads a text byte by byte and keeps to what a Grammar allows (Earley 1970; nullable rules
// as Aycock and Horspool 2002, right recursion as Leo 1991). A set holds all that may be open
// behind one byte; since every production can be completed, a set that is not empty has a way to
// the end.
//
// Sets are a stack: going back is dropping the last ones. One thread at a time.
#pragma once

#include <bitset>
#include <memory>
#include <vector>

#include "constrain/grammar.h"
#include "constrain/stamped_set.h"

namespace aisp {

struct EarleySet;

struct EarleyItem {
  static constexpr int32_t kNone = -1,
                           kTerminal = -2;  // of `rule`: the production's end, a terminal
  int32_t production = 0;
  int32_t dot = 0;
  int32_t state = 0;     // of the terminal behind the dot
  int32_t rule = kNone;  // behind the dot
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
  bool whole = false;      // the text may end here
};

class Earley {
 public:
  // Of one set: more than any text of a sensible grammar comes to. A byte that leads to more may
  // not follow.
  static constexpr size_t kMaxItems = 20'000;
  // Items that came over a token's last byte: alternatives side by side at one place of a text.
  static constexpr size_t kMaxAlternatives = 1000;

  explicit Earley(Grammar* grammar) : g_(*grammar) {}

  const EarleySet* Start();
  // What `rule` may begin with, by itself: its productions began at Outside().
  const EarleySet* StartOf(int32_t rule);
  const EarleySet* Outside() const { return &outside_; }
  // Null when `byte` may not follow.
  const EarleySet* Step(const EarleySet& from, uint8_t byte);
  // `set`, or one that has its first kMaxAlternatives alternatives where it has more.
  const EarleySet* Narrowed(const EarleySet& set);
  // The symbol that `item` awaits; null at its production's end.
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
  std::vector<uint32_t> predicted_;  // by rule: the closure that predicted it last
  uint32_t closure_ = 0;
  // Of the set that is being made: its items, and the rules that ended there with where they began.
  StampedSet<EarleyItem> added_, ended_;
};

}  // namespace aisp
