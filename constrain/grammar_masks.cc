#include "constrain/grammar_masks.h"

#include <algorithm>
#include <span>

namespace aisp {
namespace {

constexpr size_t kFewTokens = 400;
constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kMaxDepth = 300;  // nested rules in the remainder of one token

std::span<const uint32_t> NodesOf(std::string_view rest) {
  return {reinterpret_cast<const uint32_t*>(rest.data()), rest.size() / sizeof(uint32_t)};
}

}  // namespace

const GrammarMasks::Part& GrammarMasks::PartTable::Add(uint64_t key, Part part) {
  parts_.push_back(std::move(part));
  if (2 * parts_.size() > entries_.size()) {
    std::vector<Entry> before(2 * entries_.size());
    before.swap(entries_);
    for (const Entry& entry : before) {
      if (entry.part != nullptr) entries_[Slot(entry.key)] = entry;
    }
  }
  entries_[Slot(key)] = {key, &parts_.back()};
  return parts_.back();
}

void GrammarMasks::PartTable::Clear() {
  entries_.assign(kLeast, {});
  parts_.clear();
}

void GrammarMasks::Tokens::AddTo(TokenMask* mask) const {
  for (const int32_t token : few) mask->Set(static_cast<size_t>(token));
  if (many != nullptr) mask->Join(*many);
}

GrammarMasks::GrammarMasks(Grammar* grammar, std::shared_ptr<const TokenTrie> trie)
    : g_(*grammar),
      trie_(std::move(trie)),
      earley_(grammar),
      rests_(kWhole + 1),
      walk_(trie_->max_depth() + 2u) {
  int32_t place = 0;
  for (const Production& production : g_.productions) {
    first_place_.push_back(place);
    place += static_cast<int32_t>(production.symbols.size()) + 1;
  }
  begun_.resize(g_.of_rule.size(), nullptr);
}

void GrammarMasks::Restart() {
  work_ = 0;
  cut_ = false;
  cut_parts_.clear();
}

void GrammarMasks::Trim() {
  if (bytes_ < kMaxBytes) return;
  states_.Clear();
  parts_.Clear();
  rest_ids_.clear();
  rests_.resize(kWhole + 1);
  earley_.Reset(0);
  std::fill(begun_.begin(), begun_.end(), nullptr);
  bytes_ = 0;
}

GrammarMasks::Frame& GrammarMasks::Open() {
  if (open_ == frames_.size()) frames_.push_back(std::make_unique<Frame>());
  Frame& frame = *frames_[open_++];
  frame.met.Clear();
  frame.ended.clear();
  frame.found.clear();
  frame.outside.clear();
  return frame;
}

void GrammarMasks::Compute(const EarleySet& set, TokenMask* mask) {
  std::fill(mask->words().begin(), mask->words().end(), 0);
  Trim();
  Restart();
  Frame& frame = Open();
  // Predicted items are covered by the part of the rule that predicted them. Only at a text's start
  // does no item await the root.
  const bool start = !set.items.empty() && set.items[0].origin == &set;
  for (const EarleyItem& item : set.items) {
    if (item.rule == EarleyItem::kNone || (!start && item.origin == &set)) continue;
    if (start && item.rule != EarleyItem::kTerminal) continue;
    const GrammarSymbol& behind = *earley_.Behind(item);
    const Part& part =
        behind.terminal ? OfState(behind.index, item.state) : OfSymbol(behind, kWhole, true);
    frame.found.push_back(&part.tokens);
    Follow(item, part.rest, &frame);
  }
  FollowEnded(&frame);
  std::sort(frame.found.begin(), frame.found.end());
  frame.found.erase(std::unique(frame.found.begin(), frame.found.end()), frame.found.end());
  for (const Tokens* tokens : frame.found) tokens->AddTo(mask);
  --open_;
}

void GrammarMasks::Prepare(const std::function<bool()>& late) {
  for (size_t rule = 0; rule < g_.of_rule.size() && !late(); ++rule) {
    Restart();
    if (!g_.of_rule[rule].empty()) OfSymbol({false, static_cast<int32_t>(rule)}, kWhole, true);
  }
  LeftList left;
  PrepareStates(late, &left);
  PrepareBehindRules(late, &left);
}

// What remains of `rest` after the symbols from `dot` on.
GrammarMasks::RestId GrammarMasks::ThroughRest(int32_t production, size_t dot, RestId rest) {
  const auto& symbols = g_.productions[static_cast<size_t>(production)].symbols;
  Restart();
  for (; dot < symbols.size() && rest != kNoRest; ++dot)
    rest = OfSymbol(symbols[dot], rest, false).rest;
  return rest;
}

// The terminals' states, and what follows them in their production.
void GrammarMasks::PrepareStates(const std::function<bool()>& late, LeftList* left) {
  constexpr size_t kMaxStates = 64;  // per terminal
  std::vector<std::vector<int32_t>> states(g_.terminals.size());
  for (size_t t = 0; t < states.size() && !late(); ++t)
    states[t] = g_.terminals[t]->StatesFrom(g_.terminals[t]->start(), kMaxStates);
  for (const auto& productions : g_.of_rule) {
    for (const int32_t p : productions) {
      const auto& symbols = g_.productions[static_cast<size_t>(p)].symbols;
      for (size_t dot = 0; dot < symbols.size(); ++dot) {
        if (!symbols[dot].terminal) continue;
        for (const int32_t state : states[static_cast<size_t>(symbols[dot].index)]) {
          if (late()) return;
          Restart();
          const RestId rest = ThroughRest(p, dot + 1, OfState(symbols[dot].index, state).rest);
          left->Add({g_.productions[static_cast<size_t>(p)].rule, rest});
        }
      }
    }
  }
}

// What follows each rule in its context, with what the rule may leave, up through the rules.
void GrammarMasks::PrepareBehindRules(const std::function<bool()>& late, LeftList* left) {
  std::vector<std::vector<std::pair<int32_t, size_t>>> places(g_.of_rule.size());
  for (size_t p = 0; p < g_.productions.size(); ++p) {
    const auto& symbols = g_.productions[p].symbols;
    for (size_t dot = 0; dot < symbols.size(); ++dot) {
      if (symbols[dot].terminal) continue;
      places[static_cast<size_t>(symbols[dot].index)].emplace_back(static_cast<int32_t>(p), dot);
    }
  }
  for (size_t i = 0; i < left->list.size(); ++i) {
    const Left at = left->list[i];
    for (const auto& [p, dot] : places[static_cast<size_t>(at.rule)]) {
      if (late()) return;
      const RestId rest = ThroughRest(p, dot + 1, at.rest);
      left->Add({g_.productions[static_cast<size_t>(p)].rule, rest});
    }
  }
}

void GrammarMasks::Follow(const EarleyItem& item, RestId rest, Frame* frame) {
  const auto production = static_cast<size_t>(item.production);
  const auto& symbols = g_.productions[production].symbols;
  for (int32_t dot = item.dot + 1; rest != kNoRest; ++dot) {
    ++work_;
    if (!frame->met.Insert({item.origin, first_place_[production] + dot, rest})) return;
    if (static_cast<size_t>(dot) == symbols.size()) {
      const int32_t rule = g_.productions[production].rule;
      if (item.origin == earley_.Outside()) {
        frame->outside.push_back(rest);
      } else if (frame->met.Insert({item.origin, -1 - rule, rest})) {
        frame->ended.push_back({rule, rest, item.origin});
      }
      return;
    }
    const Part& part = OfSymbol(symbols[static_cast<size_t>(dot)], rest, false);
    frame->found.push_back(&part.tokens);
    rest = part.rest;
  }
}

void GrammarMasks::FollowEnded(Frame* frame) {
  while (!frame->ended.empty()) {
    const Ended ended = frame->ended.back();
    frame->ended.pop_back();
    work_ += ended.origin->items.size() / 16;  // most are skipped
    for (const EarleyItem& item : ended.origin->items) {
      if (item.rule == ended.rule) Follow(item, ended.rest, frame);
    }
  }
}

GrammarMasks::Tokens GrammarMasks::Kept(std::vector<int32_t> tokens) {
  Tokens out;
  if (tokens.size() <= kFewTokens) {
    std::sort(tokens.begin(), tokens.end());
    tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
    out.few = std::move(tokens);
    out.few.shrink_to_fit();
    bytes_ += out.few.size() * sizeof(int32_t);
    return out;
  }
  out.many = std::make_unique<TokenMask>(trie_->vocabulary());
  for (const int32_t token : tokens) out.many->Set(static_cast<size_t>(token));
  bytes_ += out.many->words().size_bytes();
  return out;
}

GrammarMasks::Tokens GrammarMasks::Joined(const std::vector<const Tokens*>& parts) {
  std::vector<int32_t> few;
  bool many = false;
  for (const Tokens* part : parts) {
    few.insert(few.end(), part->few.begin(), part->few.end());
    many = many || part->many != nullptr;
  }
  if (!many) return Kept(std::move(few));
  Tokens out;
  out.many = std::make_unique<TokenMask>(trie_->vocabulary());
  bytes_ += out.many->words().size_bytes();
  for (const Tokens* part : parts) part->AddTo(out.many.get());
  return out;
}

GrammarMasks::RestId GrammarMasks::RestOf(std::vector<uint32_t>* nodes) {
  if (nodes->empty()) return kNoRest;
  if (!std::is_sorted(nodes->begin(), nodes->end())) std::sort(nodes->begin(), nodes->end());
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

// Tokens that stay in the terminal from `state` on. A rest starts where the terminal is complete
// and the next byte may follow it somewhere.
const GrammarMasks::Part& GrammarMasks::OfState(int32_t terminal, int32_t state) {
  const uint64_t key = static_cast<uint64_t>(terminal) << 32 | static_cast<uint32_t>(state);
  if (const Part* known = states_.Find(key)) return *known;
  const auto nodes = trie_->nodes();
  Automaton& automaton = *g_.terminals[static_cast<size_t>(terminal)];
  const std::bitset<256>& behind = g_.behind_terminal[static_cast<size_t>(terminal)];
  std::vector<uint32_t> rest;
  std::vector<int32_t> tokens;
  walk_[0] = state;
  for (uint32_t i = 0; i < nodes.size();) {
    const TrieNode& node = nodes[i];
    const int32_t from = walk_[node.depth - 1u];
    if (node.depth > 1 && behind.test(node.byte) && automaton.Accepts(from)) rest.push_back(i);
    const int32_t next = automaton.Step(from, node.byte);
    if (next == Automaton::kDead) {
      i = node.next;
      continue;
    }
    walk_[node.depth] = next;
    trie_->AddTokens(node, &tokens);
    ++i;
  }
  Part part = {Kept(std::move(tokens)), RestOf(&rest)};
  if (!g_.languages.MayGrow()) return cut_parts_.emplace_back(std::move(part));
  return states_.Add(key, std::move(part));
}

// A rule asks for other parts with what its first terminal leaves of the tokens, which is shorter,
// so no part depends on itself.
const GrammarMasks::Part& GrammarMasks::OfSymbol(const GrammarSymbol& symbol, RestId rest,
                                                 bool takes) {
  static const Part kNone;
  const auto which = static_cast<uint64_t>(symbol.index) * 3 + (!symbol.terminal ? 0u
                                                                : takes          ? 2u
                                                                                 : 1u);
  const uint64_t key = which << 32 | static_cast<uint32_t>(rest);
  if (const Part* known = parts_.Find(key)) return *known;
  if (work_ >= kMaxWork || open_ > kMaxDepth) {
    cut_ = true;
    return kNone;
  }
  bytes_ += 200;
  Part part;
  if (symbol.terminal) {
    WalkTerminal(symbol.index, rest, takes, &part);
  } else {
    WalkRule(symbol.index, rest, &part);
  }
  if (cut_ || !g_.languages.MayGrow()) return cut_parts_.emplace_back(std::move(part));
  return parts_.Add(key, std::move(part));
}

void GrammarMasks::WalkTerminal(int32_t terminal, RestId rest, bool takes, Part* out) {
  const auto nodes = trie_->nodes();
  Automaton& automaton = *g_.terminals[static_cast<size_t>(terminal)];
  const std::bitset<256>& behind = g_.behind_terminal[static_cast<size_t>(terminal)];
  std::vector<uint32_t> next_rest;
  std::vector<int32_t> tokens;
  for (const uint32_t begin : NodesOf(rests_[static_cast<size_t>(rest)])) {
    walk_[nodes[begin].depth - 1u] = automaton.start();
    for (uint32_t i = begin; i < nodes[begin].next;) {
      const TrieNode& node = nodes[i];
      const int32_t from = walk_[node.depth - 1u];
      const bool ends = (i != begin || !takes) && automaton.Accepts(from);
      if (ends && behind.test(node.byte)) next_rest.push_back(i);
      const int32_t next = automaton.Step(from, node.byte);
      if (next == Automaton::kDead) {
        i = node.next;
        continue;
      }
      walk_[node.depth] = next;
      trie_->AddTokens(node, &tokens);
      ++i;
      ++work_;
    }
  }
  work_ += NodesOf(rests_[static_cast<size_t>(rest)]).size();
  *out = {Kept(std::move(tokens)), RestOf(&next_rest)};
}

void GrammarMasks::WalkRule(int32_t rule, RestId rest, Part* out) {
  const EarleySet*& begun = begun_[static_cast<size_t>(rule)];
  if (begun == nullptr) begun = earley_.StartOf(rule);
  if (begun == nullptr) return;
  Frame& frame = Open();
  const bool empty = g_.nullable[static_cast<size_t>(rule)];
  if (empty && rest != kWhole) frame.outside.push_back(rest);
  for (const EarleyItem& item : begun->items) {
    if (item.rule != EarleyItem::kTerminal) continue;
    const GrammarSymbol& behind = *earley_.Behind(item);
    const Part& part =
        rest == kWhole ? OfState(behind.index, item.state) : OfSymbol(behind, rest, true);
    frame.found.push_back(&part.tokens);
    Follow(item, part.rest, &frame);
  }
  FollowEnded(&frame);
  const std::bitset<256>& may_follow = g_.behind_rule[static_cast<size_t>(rule)];
  std::vector<uint32_t> next_rest;
  for (const RestId left : frame.outside) {
    work_ += NodesOf(rests_[static_cast<size_t>(left)]).size();
    for (const uint32_t node : NodesOf(rests_[static_cast<size_t>(left)])) {
      if (may_follow.test(trie_->nodes()[node].byte)) next_rest.push_back(node);
    }
  }
  *out = {Joined(frame.found), RestOf(&next_rest)};
  --open_;
}

}  // namespace aisp
