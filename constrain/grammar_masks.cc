#include "constrain/grammar_masks.h"

#include <algorithm>
#include <bit>

namespace aisp {
namespace {

constexpr size_t kFewTokens = 400;
constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxNewStates = 20'000;  // of a part

std::span<const uint32_t> NodesOf(std::string_view rest) {
  return {reinterpret_cast<const uint32_t*>(rest.data()), rest.size() / sizeof(uint32_t)};
}

}  // namespace

void GrammarMasks::Tokens::AddTo(TokenMask* mask) const {
  for (const int32_t token : few) mask->Set(static_cast<size_t>(token));
  if (many != nullptr) mask->Join(*many);
}

GrammarMasks::GrammarMasks(Grammar* grammar, std::shared_ptr<const TokenTrie> trie)
    : g_(*grammar),
      trie_(std::move(trie)),
      items_(grammar),
      automaton_(grammar),
      found_(trie_->vocabulary()),
      states_(trie_->max_depth() + 2u) {
  int32_t place = 0;
  for (const Production& production : g_.productions) {
    first_place_.push_back(place);
    place += static_cast<int32_t>(production.symbols.size()) + 1;
  }
  Trim();
}

void GrammarMasks::Trim() {
  if (!rests_.empty() && bytes_ < kMaxBytes) return;
  terminals_.clear();
  places_.clear();
  rest_ids_.clear();
  rests_.assign(1, {});  // kNoRest
  bytes_ = 0;
}

void GrammarMasks::Compute(const EarleySet& set, TokenMask* mask) {
  std::fill(mask->words().begin(), mask->words().end(), 0);
  Trim();
  met_.Clear();
  completed_.clear();
  for (const EarleyItem& item : set.items) {
    const GrammarSymbol* behind = items_.Behind(item);
    if (behind == nullptr || !behind->terminal) continue;
    const Part& part = OfTerminal(behind->index, item.state);
    part.tokens.AddTo(mask);
    Follow(item, part.rest, mask);
  }
  while (!completed_.empty()) {
    const Completed done = completed_.back();
    completed_.pop_back();
    for (const EarleyItem& item : done.origin->items) {
      const GrammarSymbol* behind = items_.Behind(item);
      if (behind != nullptr && !behind->terminal && behind->index == done.rule)
        Follow(item, done.rest, mask);
    }
  }
}

void GrammarMasks::Follow(const EarleyItem& item, RestId rest, TokenMask* mask) {
  const auto production = static_cast<size_t>(item.production);
  const int32_t dot = item.dot + 1;
  if (rest == kNoRest || !met_.Insert({item.origin, first_place_[production] + dot, rest})) return;
  if (static_cast<size_t>(dot) < g_.productions[production].symbols.size()) {
    const Part& part = OfPlace(item.production, dot, rest);
    part.tokens.AddTo(mask);
    rest = part.rest;
  }
  const int32_t rule = g_.productions[production].rule;
  if (rest != kNoRest && met_.Insert({item.origin, -1 - rule, rest}))
    completed_.push_back({rule, rest, item.origin});
}

// What the walk of a part has found.
GrammarMasks::Tokens GrammarMasks::Collect() {
  Tokens out;
  const size_t count = found_.Count();
  if (count > kFewTokens) {
    out.many = std::make_unique<TokenMask>(found_);
    bytes_ += found_.words().size_bytes();
    return out;
  }
  out.few.reserve(count);
  for (size_t w = 0; w < found_.words().size(); ++w) {
    for (uint32_t bits = found_.words()[w]; bits != 0; bits &= bits - 1)
      out.few.push_back(static_cast<int32_t>(w * 32) + std::countr_zero(bits));
  }
  bytes_ += count * sizeof(int32_t) + 100;
  return out;
}

GrammarMasks::RestId GrammarMasks::RestOf(std::vector<uint32_t>* nodes) {
  if (nodes->empty()) return kNoRest;
  std::sort(nodes->begin(), nodes->end());
  nodes->erase(std::unique(nodes->begin(), nodes->end()), nodes->end());
  std::string key(reinterpret_cast<const char*>(nodes->data()), nodes->size() * sizeof(uint32_t));
  const auto [it, fresh] =
      rest_ids_.try_emplace(std::move(key), static_cast<RestId>(rests_.size()));
  if (fresh) {
    rests_.push_back(it->first);
    bytes_ += it->first.size() + 100;
  }
  return it->second;
}

// Tokens that stay in the terminal from `state` on. The rest begins where it has come to an end and
// a byte follows that may stand behind it somewhere.
const GrammarMasks::Part& GrammarMasks::OfTerminal(int32_t terminal, int32_t state) {
  const uint64_t key = static_cast<uint64_t>(terminal) << 32 | static_cast<uint32_t>(state);
  const auto [it, fresh] = terminals_.try_emplace(key);
  if (!fresh) return it->second;
  const auto nodes = trie_->nodes();
  Automaton& automaton = *g_.terminals[static_cast<size_t>(terminal)];
  const std::bitset<256>& behind = g_.behind_terminal[static_cast<size_t>(terminal)];
  std::fill(found_.words().begin(), found_.words().end(), 0);
  std::vector<uint32_t> rest;
  states_[0] = state;
  for (uint32_t i = 0; i < nodes.size();) {
    const TrieNode& node = nodes[i];
    const int32_t from = states_[node.depth - 1u];
    if (node.depth > 1 && behind.test(node.byte) && automaton.Accepts(from)) rest.push_back(i);
    const int32_t next = automaton.Step(from, node.byte);
    if (next == Automaton::kDead) {
      i = node.next;
      continue;
    }
    states_[node.depth] = next;
    trie_->SetTokens(node, &found_);
    ++i;
  }
  it->second.tokens = Collect();
  it->second.rest = RestOf(&rest);
  return it->second;
}

// Tokens of `rest` that end behind the first `dot` symbols of the production; the new rest begins
// where the production has come to an end.
const GrammarMasks::Part& GrammarMasks::OfPlace(int32_t production, int32_t dot, RestId rest) {
  const int32_t place = first_place_[static_cast<size_t>(production)] + dot;
  const uint64_t key = static_cast<uint64_t>(place) << 32 | static_cast<uint32_t>(rest);
  const auto [it, fresh] = places_.try_emplace(key);
  if (!fresh) return it->second;
  automaton_.Trim();
  automaton_.Allow(kMaxNewStates);
  const int32_t start = automaton_.StartOf(production, dot);
  if (start == ProductionAutomaton::kDead) return it->second;
  const auto nodes = trie_->nodes();
  const auto rule = static_cast<size_t>(g_.productions[static_cast<size_t>(production)].rule);
  const std::bitset<256>& behind = g_.behind_rule[rule];
  std::fill(found_.words().begin(), found_.words().end(), 0);
  std::vector<uint32_t> next_rest;
  for (const uint32_t begin : NodesOf(rests_[static_cast<size_t>(rest)])) {
    const size_t base = nodes[begin].depth - 1u;
    states_[base] = start;
    for (uint32_t i = begin; i < nodes[begin].next;) {
      const TrieNode& node = nodes[i];
      const int32_t from = states_[node.depth - 1u];
      if (behind.test(node.byte) && automaton_.Completes(from)) next_rest.push_back(i);
      const int32_t next = automaton_.Step(from, node.byte);
      if (next == ProductionAutomaton::kDead) {
        i = node.next;
        continue;
      }
      states_[node.depth] = next;
      trie_->SetTokens(node, &found_);
      ++i;
    }
  }
  it->second.tokens = Collect();
  it->second.rest = RestOf(&next_rest);
  return it->second;
}

}  // namespace aisp
