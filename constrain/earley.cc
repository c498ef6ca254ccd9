#include "constrain/earley.h"

#include <algorithm>
#include <map>

namespace aisp {

EarleySet* Earley::New() {
  if (used_ == sets_.size()) sets_.push_back(std::make_unique<EarleySet>());
  EarleySet* set = sets_[used_++].get();
  set->items.clear();
  set->first.reset();
  set->whole = false;
  return set;
}

const GrammarSymbol* Earley::Behind(const EarleyItem& item) const {
  const auto& symbols = g_.productions[static_cast<size_t>(item.production)].symbols;
  const auto dot = static_cast<size_t>(item.dot);
  return dot < symbols.size() ? &symbols[dot] : nullptr;
}

void Earley::Add(EarleySet* set, const EarleyItem& item) {
  const bool known = std::find(set->items.rbegin(), set->items.rend(), item) != set->items.rend();
  if (!known && set->items.size() <= kMaxItems) set->items.push_back(item);
}

// Over the symbol behind the dot.
void Earley::Advance(EarleySet* set, const EarleyItem& item) {
  EarleyItem next = item;
  ++next.dot;
  const GrammarSymbol* behind = Behind(next);
  const bool terminal = behind != nullptr && behind->terminal;
  next.state = terminal ? g_.terminals[static_cast<size_t>(behind->index)]->start() : 0;
  Add(set, next);
}

void Earley::Complete(EarleySet* set, int32_t rule, const EarleySet* origin) {
  // A rule that only one item awaits, at its end, completes that one too: no chain of items is kept
  // for lists that are written by right recursion.
  for (size_t same = 0; same <= g_.of_rule.size();) {
    if (rule == g_.root && origin == start_) set->whole = true;
    const EarleyItem* only = nullptr;
    size_t awaiting = 0;
    for (const EarleyItem& item : origin->items) {
      const GrammarSymbol* behind = Behind(item);
      if (behind == nullptr || behind->terminal || behind->index != rule) continue;
      ++awaiting;
      only = &item;
    }
    const bool at_end =
        awaiting == 1 && static_cast<size_t>(only->dot) + 1 ==
                             g_.productions[static_cast<size_t>(only->production)].symbols.size();
    if (!at_end) break;
    same = only->origin == origin ? same + 1 : 0;
    rule = g_.productions[static_cast<size_t>(only->production)].rule;
    origin = only->origin;
  }
  for (const EarleyItem& item : origin->items) {
    const GrammarSymbol* behind = Behind(item);
    if (behind != nullptr && !behind->terminal && behind->index == rule) Advance(set, item);
  }
}

// False when there are too many alternatives.
bool Earley::Close(EarleySet* set) {
  predicted_.resize(g_.of_rule.size(), 0);
  ++closure_;
  for (size_t i = 0; i < set->items.size(); ++i) {
    const EarleyItem item = set->items[i];
    const GrammarSymbol* behind = Behind(item);
    if (behind == nullptr) {
      // What is empty was passed when it was predicted.
      const int32_t rule = g_.productions[static_cast<size_t>(item.production)].rule;
      if (item.origin != set) Complete(set, rule, item.origin);
      if (item.origin == set && rule == g_.root && set == start_) set->whole = true;
      continue;
    }
    const auto index = static_cast<size_t>(behind->index);
    if (behind->terminal) {
      Automaton& automaton = *g_.terminals[index];
      const Automaton::Row& row = automaton.RowOf(item.state);
      for (size_t byte = 0; byte < 256; ++byte) {
        if (row[byte] != Automaton::kDead) set->first.set(byte);
      }
      if (item.state == automaton.start() && automaton.Accepts(item.state)) Advance(set, item);
      continue;
    }
    if (predicted_[index] != closure_) {
      predicted_[index] = closure_;
      for (const int32_t p : g_.of_rule[index]) {
        EarleyItem begun{p, -1, 0, set};
        Advance(set, begun);
      }
    }
    if (g_.nullable[index]) Advance(set, item);
  }
  return set->items.size() <= kMaxItems;
}

const EarleySet* Earley::Start() {
  EarleySet* set = New();
  start_ = set;
  for (const int32_t p : g_.of_rule[static_cast<size_t>(g_.root)]) {
    Advance(set, EarleyItem{p, -1, 0, set});
  }
  Close(set);
  set->whole = g_.nullable[static_cast<size_t>(g_.root)];
  return set;
}

const EarleySet* Earley::Step(const EarleySet& from, uint8_t byte) {
  if (!from.first.test(byte)) return nullptr;
  EarleySet* set = New();
  for (const EarleyItem& item : from.items) {
    const GrammarSymbol* behind = Behind(item);
    if (behind == nullptr || !behind->terminal) continue;
    Automaton& automaton = *g_.terminals[static_cast<size_t>(behind->index)];
    EarleyItem next = item;
    next.state = automaton.Step(item.state, byte);
    if (next.state == Automaton::kDead) continue;
    Add(set, next);
    if (automaton.Accepts(next.state)) Advance(set, next);
  }
  if (!set->items.empty() && Close(set)) return set;
  --used_;
  return nullptr;
}

void Earley::Identify() {
  struct Entry {
    int64_t production, dot, state, own;
    Hash128 origin;
  };
  for (; identified_ < used_; ++identified_) {
    EarleySet& set = *sets_[identified_];
    std::vector<std::string> entries;
    for (const EarleyItem& item : set.items) {
      const bool own = item.origin == &set;
      const Entry entry{item.production, item.dot, item.state, own ? 1 : 0,
                        own ? Hash128{} : item.origin->id};
      entries.emplace_back(reinterpret_cast<const char*>(&entry), sizeof(entry));
    }
    std::sort(entries.begin(), entries.end());
    std::string all(1, set.whole ? '1' : '0');
    for (const std::string& entry : entries) all += entry;
    set.id = HashBytes(all);
  }
}

Earley::Open Earley::OpenOf(const EarleySet& from) const {
  Open out;
  for (const EarleyItem& item : from.items) {
    const GrammarSymbol* behind = Behind(item);
    if (behind == nullptr || !behind->terminal) continue;
    Automaton* automaton = g_.terminals[static_cast<size_t>(behind->index)].get();
    size_t group = 0;
    while (group < out.states.size() &&
           (out.automata[group] != automaton || out.states[group] != item.state)) {
      ++group;
    }
    if (group == out.states.size()) {
      out.automata.push_back(automaton);
      out.states.push_back(item.state);
    }
    out.items.push_back(item);
    out.group.push_back(group);
  }
  return out;
}

const EarleySet* Earley::At(const Open& open, const int32_t* states) {
  EarleySet* set = New();
  for (size_t i = 0; i < open.items.size(); ++i) {
    const size_t group = open.group[i];
    if (states[group] == Automaton::kDead) continue;
    EarleyItem item = open.items[i];
    item.state = states[group];
    Add(set, item);
    if (open.automata[group]->Accepts(item.state)) Advance(set, item);
  }
  return Close(set) ? set : nullptr;
}

std::bitset<256> Earley::Behind(const Open& open, const std::vector<bool>& ended) {
  EarleySet* set = New();
  for (size_t i = 0; i < open.items.size(); ++i) {
    if (ended[open.group[i]]) Advance(set, open.items[i]);
  }
  Close(set);
  --used_;
  return set->first;
}

// Nodes [begin, end) lie side by side or below each other; `from` is the set before the first of
// them. As long as a token stays in the terminals that are open, only their automata walk; a set is
// made where it leaves them.
void Earley::Walk(const EarleySet& from, const TokenTrie& trie, uint32_t begin, uint32_t end,
                  TokenMask* mask) {
  const auto nodes = trie.nodes();
  const Open open = OpenOf(from);
  if (begin >= end || open.states.empty()) return;
  const size_t n = open.states.size(), base = nodes[begin].depth - 1u, before = used_;
  std::vector<int32_t> states(n * (trie.max_depth() + 2u - base), Automaton::kDead);
  std::copy(open.states.begin(), open.states.end(), states.begin());
  std::vector<const std::bitset<256>*> behind(trie.max_depth() + 2u - base, nullptr);
  std::map<std::vector<bool>, std::bitset<256>> known;  // by the groups that have ended
  std::vector<bool> ended(n);
  for (uint32_t i = begin; i < end;) {
    const TrieNode& node = nodes[i];
    const size_t depth = node.depth - base;
    const int32_t* at = &states[(depth - 1) * n];
    if (behind[depth - 1] != nullptr && behind[depth - 1]->test(node.byte)) {
      const EarleySet* whole = At(open, at);
      const EarleySet* next = whole == nullptr ? nullptr : Step(*whole, node.byte);
      if (next != nullptr) {
        trie.SetTokens(node, mask);
        Walk(*next, trie, i + 1, node.next, mask);
      }
      used_ = before;
      i = node.next;
      continue;
    }
    int32_t* to = &states[depth * n];
    bool alive = false, any_ended = false;
    for (size_t k = 0; k < n; ++k) {
      to[k] =
          at[k] == Automaton::kDead ? Automaton::kDead : open.automata[k]->Step(at[k], node.byte);
      ended[k] = to[k] != Automaton::kDead && open.automata[k]->Accepts(to[k]);
      alive = alive || to[k] != Automaton::kDead;
      any_ended = any_ended || ended[k];
    }
    if (!alive) {
      i = node.next;
      continue;
    }
    trie.SetTokens(node, mask);
    behind[depth] = nullptr;
    if (any_ended) {
      const auto [it, fresh] = known.try_emplace(ended);
      if (fresh) it->second = Behind(open, ended);
      behind[depth] = &it->second;
    }
    ++i;
  }
  used_ = before;
}

}  // namespace aisp
