#include "constrain/earley.h"

#include <algorithm>

namespace aisp {

EarleySet* Earley::New() {
  if (used_ == sets_.size()) sets_.push_back(std::make_unique<EarleySet>());
  EarleySet* set = sets_[used_++].get();
  set->items.clear();
  set->first.reset();
  set->whole = false;
  added_.Clear();
  ended_.Clear();
  return set;
}

const GrammarSymbol* Earley::Behind(const EarleyItem& item) const {
  const auto& symbols = g_.productions[static_cast<size_t>(item.production)].symbols;
  const auto dot = static_cast<size_t>(item.dot);
  return dot < symbols.size() ? &symbols[dot] : nullptr;
}

void Earley::Add(EarleySet* set, const EarleyItem& item) {
  if (set->items.size() <= kMaxItems && added_.Insert(item)) set->items.push_back(item);
}

// Moves the dot of `item` over the next symbol.
void Earley::Advance(EarleySet* set, const EarleyItem& item) {
  EarleyItem next = item;
  ++next.dot;
  const GrammarSymbol* behind = Behind(next);
  const bool terminal = behind != nullptr && behind->terminal;
  next.state = terminal ? g_.terminals[static_cast<size_t>(behind->index)]->start() : 0;
  next.rule =
      terminal ? EarleyItem::kTerminal : (behind == nullptr ? EarleyItem::kNone : behind->index);
  Add(set, next);
}

void Earley::Complete(EarleySet* set, int32_t rule, const EarleySet* origin) {
  if (!ended_.Insert({rule, 0, 0, 0, origin})) return;
  // Leo's optimisation: a rule that only one item awaits, at its end, also completes that item, so
  // that right-recursive lists do not keep a chain of items.
  for (size_t same = 0; same <= g_.of_rule.size();) {
    if (rule == g_.root && origin == start_) set->whole = true;
    const EarleyItem* only = nullptr;
    size_t awaiting = 0;
    for (const EarleyItem& item : origin->items) {
      if (item.rule != rule) continue;
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
    if (item.rule == rule) Advance(set, item);
  }
}

void Earley::Predict(EarleySet* set, size_t rule) {
  if (predicted_[rule] == closure_) return;
  predicted_[rule] = closure_;
  for (const int32_t p : g_.of_rule[rule]) Advance(set, EarleyItem{p, -1, 0, 0, set});
}

// False when the set has too many items.
bool Earley::Close(EarleySet* set) {
  predicted_.resize(g_.of_rule.size(), 0);
  ++closure_;
  for (size_t i = 0; i < set->items.size(); ++i) {
    const EarleyItem item = set->items[i];
    const GrammarSymbol* behind = Behind(item);
    if (behind == nullptr) {
      // Empty completions were handled at prediction.
      const int32_t rule = g_.productions[static_cast<size_t>(item.production)].rule;
      if (item.origin != set) Complete(set, rule, item.origin);
      if (item.origin == set && rule == g_.root && set == start_) set->whole = true;
      continue;
    }
    const auto index = static_cast<size_t>(behind->index);
    if (behind->terminal) {
      Automaton& automaton = *g_.terminals[index];
      set->first |= automaton.BytesOf(item.state);
      if (item.state == automaton.start() && automaton.Accepts(item.state)) Advance(set, item);
      continue;
    }
    Predict(set, index);
    if (g_.nullable[index]) Advance(set, item);
  }
  return set->items.size() <= kMaxItems;
}

const EarleySet* Earley::Start() {
  EarleySet* set = New();
  start_ = set;
  for (const int32_t p : g_.of_rule[static_cast<size_t>(g_.root)]) {
    Advance(set, EarleyItem{p, -1, 0, 0, set});
  }
  Close(set);
  set->whole = g_.nullable[static_cast<size_t>(g_.root)];
  return set;
}

const EarleySet* Earley::StartOf(int32_t rule) {
  EarleySet* set = New();
  for (const int32_t p : g_.of_rule[static_cast<size_t>(rule)])
    Advance(set, EarleyItem{p, -1, 0, 0, &outside_});
  return Close(set) ? set : nullptr;
}

const EarleySet* Earley::Narrowed(const EarleySet& set) {
  const auto over = [&set](const EarleyItem& item) { return item.origin != &set; };
  if (set.items.size() <= kMaxAlternatives ||
      static_cast<size_t>(std::count_if(set.items.begin(), set.items.end(), over)) <=
          kMaxAlternatives) {
    return &set;
  }
  EarleySet* out = New();
  for (const EarleyItem& item : set.items) {
    if (out->items.size() < kMaxAlternatives && over(item) && Behind(item) != nullptr)
      Add(out, item);
  }
  Close(out);
  out->whole = set.whole;
  return out;
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

}  // namespace aisp
