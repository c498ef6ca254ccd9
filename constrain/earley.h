// Earley: reads a text byte by byte and keeps to what a Grammar allows (Earley 1970; nullable rules
// as Aycock and Horspool 2002, right recursion as Leo 1991). A set holds all that may be open
// behind one byte; since every production can be completed, a set that is not empty has a way to
// the end.
//
// Sets are a stack: going back is dropping the last ones. One thread at a time.
#pragma once

#include <algorithm>
#include <bitset>
#include <memory>
#include <vector>

#include "common/hash.h"
#include "constrain/grammar.h"
#include "constrain/token_trie.h"

namespace aisp {

struct EarleySet;

struct EarleyItem {
  int32_t production = 0;
  int32_t dot = 0;
  int32_t state = 0;  // of the terminal behind the dot
  const EarleySet* origin = nullptr;
  friend bool operator==(const EarleyItem&, const EarleyItem&) = default;
};

struct EarleySet {
  std::vector<EarleyItem> items;
  std::bitset<256> first;  // bytes that may follow
  bool whole = false;      // the text may end here
  Hash128 id;              // once Identify was called: equal for sets that allow the same texts
};

class Earley {
 public:
  // Alternatives side by side at one place of a text; a byte that leads to more may not follow.
  static constexpr size_t kMaxItems = 1000;

  explicit Earley(Grammar* grammar) : g_(*grammar) {}

  const EarleySet* Start();
  // Null when `byte` may not follow.
  const EarleySet* Step(const EarleySet& from, uint8_t byte);
  // Sets every token that may follow `from`.
  void Mask(const EarleySet& from, const TokenTrie& trie, TokenMask* mask) {
    Walk(from, trie, 0, static_cast<uint32_t>(trie.nodes().size()), mask);
  }

  // Gives every set its id: a hash of its items and of the ids of their origins.
  void Identify();

  size_t size() const { return used_; }
  void Reset(size_t size) {
    used_ = size;
    identified_ = std::min(identified_, size);
  }

 private:
  // The terminals that a walk of the trie goes on in: items in the same state of the same one walk
  // together.
  struct Open {
    std::vector<EarleyItem> items;
    std::vector<size_t> group;  // by item
    std::vector<Automaton*> automata;
    std::vector<int32_t> states;
  };

  EarleySet* New();
  const GrammarSymbol* Behind(const EarleyItem& item) const;
  void Add(EarleySet* set, const EarleyItem& item);
  void Advance(EarleySet* set, const EarleyItem& item);
  void Complete(EarleySet* set, int32_t rule, const EarleySet* origin);
  bool Close(EarleySet* set);
  void Walk(const EarleySet& from, const TokenTrie& trie, uint32_t begin, uint32_t end,
            TokenMask* mask);
  Open OpenOf(const EarleySet& from) const;
  // The set where the groups stand in `states` (kDead: left out).
  const EarleySet* At(const Open& open, const int32_t* states);
  // The bytes that may follow where the groups in `ended` have come to an end.
  std::bitset<256> Behind(const Open& open, const std::vector<bool>& ended);

  Grammar& g_;
  std::vector<std::unique_ptr<EarleySet>> sets_;
  size_t used_ = 0, identified_ = 0;  // the first `identified_` sets have an id
  const EarleySet* start_ = nullptr;
  std::vector<uint32_t> predicted_;  // by rule: the closure that predicted it last
  uint32_t closure_ = 0;
};

}  // namespace aisp
