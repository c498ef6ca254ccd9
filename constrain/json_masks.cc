#include "constrain/json_masks.h"

#include <algorithm>
#include <bit>

namespace aisp {
namespace {

constexpr size_t kMaxTextMasks = 512;

const StringShape kFreeString;

size_t Points(std::string_view text) {
  size_t points = 0;
  for (const char c : text) points += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return points;
}

}  // namespace

JsonMasks::JsonMasks(JsonMachine* machine, std::shared_ptr<const TokenTrie> trie)
    : machine_(*machine), trie_(std::move(trie)) {
  suffix_allowed_.resize(trie_->suffixes().size());
  walk_states_.resize(trie_->max_depth() + 2u);
  walk_marks_.resize(trie_->max_depth() + 2u);
  text_states_.resize(trie_->max_depth() + 2u);
  text_points_.resize(trie_->max_depth() + 2u);
}

void JsonMasks::Compute(const JsonState& state, Arena* arena, TokenMask* mask) {
  std::fill(mask->words().begin(), mask->words().end(), 0);
  const Arena::Mark mark = arena->mark();
  machine_.Remember(state.top);
  const Scalar* scalar = state.scalar;
  const bool text = scalar != nullptr && scalar->escape == Scalar::Escape::kNone &&
                    (scalar->kind == Scalar::Kind::kName || scalar->kind == Scalar::Kind::kString);
  if (text) {
    TextTokens(state, arena, mask);
  } else {
    Walk(state, 0, static_cast<uint32_t>(trie_->nodes().size()), arena, mask);
  }
  machine_.Remember(nullptr);
  arena->Reset(mark);
}

// Nodes [begin, end) are siblings or descendants; `state` is the machine's before the first.
void JsonMasks::Walk(const JsonState& state, uint32_t begin, uint32_t end, Arena* arena,
                     TokenMask* mask) {
  const auto nodes = trie_->nodes();
  if (begin >= end) return;
  const size_t base = nodes[begin].depth - 1u;
  walk_states_[base] = state;
  walk_marks_[base] = arena->mark();
  for (uint32_t i = begin; i < end;) {
    const TrieNode& node = nodes[i];
    arena->Reset(walk_marks_[node.depth - 1u]);
    if (!machine_.Step(walk_states_[node.depth - 1u], node.byte, arena,
                       &walk_states_[node.depth])) {
      i = node.next;
      continue;
    }
    walk_marks_[node.depth] = arena->mark();
    trie_->SetTokens(node, mask);
    ++i;
  }
  arena->Reset(walk_marks_[base]);
}

bool JsonMasks::Take(const JsonState& state, std::string_view bytes, Arena* arena, JsonState* to) {
  *to = state;
  for (const char c : bytes) {
    const JsonState from = *to;
    if (!machine_.Step(from, static_cast<uint8_t>(c), arena, to)) return false;
  }
  return true;
}

void JsonMasks::TextTokens(const JsonState& state, Arena* arena, TokenMask* mask) {
  const Scalar& scalar = *state.scalar;
  const std::string prefix = scalar.keeps_text ? TextOf(scalar.text) : std::string();
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    const ScalarAlt& alt = scalar.alts[i];
    if (alt.automaton == nullptr) continue;
    Limits limits;
    if (alt.string != nullptr) {
      limits.min_more = std::max(0, alt.string->min - alt.length);
      if (alt.string->max != kNoLimit) limits.max_more = alt.string->max - alt.length;
    }
    JsonState closed;
    if (machine_.CloseWithout(state, i, arena, &closed)) {
      AllowSuffixes(closed, arena);
    } else {
      std::fill(suffix_allowed_.begin(), suffix_allowed_.end(), 0);
    }
    const bool limited = limits.min_more > 0 || limits.max_more != kNoLimit;
    const bool free = alt.automaton->IsAnyText(alt.state);
    if (limited && !free && !FindSlack(*alt.automaton, &limits)) {
      LimitedTokens(state, alt, limits, arena, mask);
    } else {
      FreeTokens(state, alt, limits, arena, mask);
    }
  }
  if (!scalar.keeps_text) return;
  for (const std::string_view text : machine_.TakenTexts(state)) {
    if (text.starts_with(prefix)) Correct(state, text.substr(prefix.size()), arena, mask);
  }
  const bool name = scalar.kind == Scalar::Kind::kName;
  if (name) KnownNames(state, prefix, arena, mask);
  for (const SpelledToken& open : trie_->Spelled(256)) Ask(state, open.token, arena, mask);
  // After a comma the text matters: it may not be repeated.
  const auto beyond = name             ? trie_->BeyondNames()
                      : state.top->few ? trie_->BeyondValues()
                                       : trie_->BeyondItems();
  for (const int32_t token : beyond) Ask(state, token, arena, mask);
}

void JsonMasks::Ask(const JsonState& state, int32_t token, Arena* arena, TokenMask* mask) {
  const Arena::Mark mark = arena->mark();
  JsonState after;
  if (Take(state, trie_->piece(token), arena, &after)) {
    mask->Set(static_cast<size_t>(token));
  } else {
    mask->Clear(static_cast<size_t>(token));
  }
  arena->Reset(mark);
}

void JsonMasks::CorrectSpelled(const JsonState& state, std::string_view rest, Arena* arena,
                               TokenMask* mask) {
  if (rest.empty()) return;
  for (const SpelledToken& s : trie_->Spelled(static_cast<uint8_t>(rest[0]))) {
    if (s.closes ? s.text == rest : rest.starts_with(s.text)) Ask(state, s.token, arena, mask);
  }
}

void JsonMasks::KnownNames(const JsonState& state, const std::string& prefix, Arena* arena,
                           TokenMask* mask) {
  const Scalar& scalar = *state.scalar;
  std::vector<std::string_view> names;
  std::vector<int32_t> shapes;
  for (size_t i = 0; i < scalar.num_alts; ++i) {
    // Names of one alternative are adjacent.
    if (i > 0 && scalar.alts[i].alt == scalar.alts[i - 1].alt) continue;
    shapes.push_back(state.top->alts[scalar.alts[i].alt].shape);
  }
  std::sort(shapes.begin(), shapes.end());
  shapes.erase(std::unique(shapes.begin(), shapes.end()), shapes.end());
  for (const int32_t index : shapes) {
    const auto& own = machine_.grammar().objects[static_cast<size_t>(index)].names;
    auto at = std::partition_point(own.begin(), own.end(),
                                   [&](const NameSlot& n) { return n.text < prefix; });
    for (; at != own.end() && at->text.starts_with(prefix); ++at) names.push_back(at->text);
  }
  if (shapes.size() > 1) {
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
  }
  NameTokens(names, 0, names.size(), prefix.size(), -1, state, arena, mask);
  for (const std::string_view name : names)
    CorrectSpelled(state, name.substr(prefix.size()), arena, mask);
}

void JsonMasks::NameTokens(const std::vector<std::string_view>& names, size_t lo, size_t hi,
                           size_t depth, int32_t node, const JsonState& at, Arena* arena,
                           TokenMask* mask) {
  if (lo >= hi) return;
  const auto nodes = trie_->nodes();
  const auto text = [&](size_t n) { return names[n]; };
  if (text(lo).size() == depth) {
    const int32_t quote = trie_->Child(node, '"');
    if (quote >= 0) {
      const auto q = static_cast<uint32_t>(quote);
      trie_->ClearBelow(quote, mask);
      Walk(at, q, nodes[q].next, arena, mask);
    }
    ++lo;
  }
  if (lo >= hi) return;
  if (const int32_t escape = trie_->Child(node, '\\'); escape >= 0) {
    const auto e = static_cast<uint32_t>(escape);
    Walk(at, e, nodes[e].next, arena, mask);
  }
  while (lo < hi) {
    const auto byte = static_cast<uint8_t>(text(lo)[depth]);
    size_t next = lo + 1;
    while (next < hi && static_cast<uint8_t>(text(next)[depth]) == byte) ++next;
    const int32_t child =
        byte >= 0x20 && byte != '"' && byte != '\\' ? trie_->Child(node, byte) : -1;
    const Arena::Mark mark = arena->mark();
    JsonState after;
    if (child >= 0 && machine_.Step(at, byte, arena, &after)) {
      trie_->SetTokens(nodes[static_cast<size_t>(child)], mask);
      NameTokens(names, lo, next, depth + 1, child, after, arena, mask);
    } else if (child >= 0) {
      trie_->ClearBelow(child, mask);
    }
    arena->Reset(mark);
    lo = next;
  }
}

void JsonMasks::Correct(const JsonState& state, std::string_view rest, Arena* arena,
                        TokenMask* mask) {
  const auto nodes = trie_->nodes();
  const Arena::Mark mark = arena->mark();
  int32_t node = -1;
  JsonState at = state, after;
  size_t done = 0;
  for (; done < rest.size(); ++done, at = after) {
    const auto byte = static_cast<uint8_t>(rest[done]);
    if (byte < 0x20 || byte == '"' || byte == '\\') break;
    node = trie_->Child(node, byte);
    if (node < 0) break;
    if (machine_.Step(at, byte, arena, &after)) continue;
    trie_->ClearBelow(node, mask);  // the only text that starts like this is used up
    break;
  }
  const int32_t quote = done == rest.size() ? trie_->Child(node, '"') : -1;
  if (quote >= 0) {
    trie_->ClearBelow(quote, mask);
    Walk(at, static_cast<uint32_t>(quote), nodes[static_cast<size_t>(quote)].next, arena, mask);
  }
  CorrectSpelled(state, rest, arena, mask);
  arena->Reset(mark);
}

// Whether length limits affect only the longest tokens and the end of the text.
bool JsonMasks::FindSlack(const Automaton& automaton, Limits* limits) {
  constexpr int32_t kFewPoints = 8;  // with less room, few tokens are left to check
  if (limits->max_more == kNoLimit) return automaton.NeverEnds();
  const auto slack = automaton.Slack(limits->min_more > 0);
  if (!slack || limits->max_more - *slack < kFewPoints) return false;
  limits->slack = *slack;
  return true;
}

// Tokens of more than `sure` code points, up to the limit, are checked one by one.
void JsonMasks::TokensNearLimit(const JsonState& state, const TextMask& text, const Limits& limits,
                                int32_t sure, Arena* arena, TokenMask* mask) {
  TokenMask near = text.inside, below = text.inside;
  trie_->KeepShort(limits.max_more, &near);
  trie_->KeepShort(sure, &below);
  for (size_t w = 0; w < near.words().size(); ++w) {
    for (auto bits = near.words()[w] & ~below.words()[w]; bits != 0; bits &= bits - 1) {
      const size_t token = w * (8 * sizeof(bits)) + static_cast<size_t>(std::countr_zero(bits));
      const Arena::Mark mark = arena->mark();
      JsonState after;
      if (Take(state, trie_->piece(static_cast<int32_t>(token)), arena, &after)) mask->Set(token);
      arena->Reset(mark);
    }
  }
}

// For any text, or a language whose length limits are far away.
void JsonMasks::FreeTokens(const JsonState& state, const ScalarAlt& alt, const Limits& limits,
                           Arena* arena, TokenMask* mask) {
  const TextMask& text = TextMaskOf(alt.automaton, alt.state);
  const int32_t sure = limits.max_more - limits.slack;  // with so many code points, room to finish
                                                        // remains
  const bool near_end = limits.max_more != kNoLimit && sure < 255;
  if (!near_end) {
    mask->Join(text.inside);
  } else {
    TokenMask inside = text.inside;
    trie_->KeepShort(sure, &inside);
    mask->Join(inside);
    if (limits.slack > 0) TokensNearLimit(state, text, limits, sure, arena, mask);
    for (const int32_t token : text.escapes) {
      JsonState after;
      if (trie_->CodePoints(token) <= sure) continue;
      const Arena::Mark mark = arena->mark();
      if (Take(state, trie_->piece(token), arena, &after)) mask->Set(static_cast<size_t>(token));
      arena->Reset(mark);
    }
  }
  const bool limited = near_end || limits.min_more > 0;
  for (const auto* quotes : {&text.quotes, &text.escaped_quotes}) {
    for (const int32_t quote : *quotes) {
      if (limited) {
        const TrieNode& node = trie_->nodes()[static_cast<size_t>(quote)];
        const std::string_view content =
            std::string_view(trie_->piece(trie_->BehindQuote(quote)[0].token))
                .substr(0, node.depth - 1u);
        const auto points = static_cast<int32_t>(Points(content));
        if (quotes == &text.escaped_quotes) {
          const Arena::Mark mark = arena->mark();
          JsonState at;
          if (Take(state, content, arena, &at))
            Walk(at, static_cast<uint32_t>(quote), node.next, arena, mask);
          arena->Reset(mark);
          continue;
        }
        if (points < limits.min_more || (near_end && points > limits.max_more)) continue;
      }
      AddClosing(quote, mask);
    }
  }
}

// A language with length limits: checks every node.
void JsonMasks::LimitedTokens(const JsonState& state, const ScalarAlt& alt, const Limits& limits,
                              Arena* arena, TokenMask* mask) {
  const auto nodes = trie_->nodes();
  text_states_[0] = alt.state;
  text_points_[0] = 0;
  std::vector<uint32_t> backslashes;
  for (uint32_t i = 0; i < nodes.size();) {
    const TrieNode& node = nodes[i];
    const int32_t from = text_states_[node.depth - 1u], before = text_points_[node.depth - 1u];
    if (node.byte == '"' || node.byte == '\\' || node.byte < 0x20) {
      if (node.byte == '"' && before >= limits.min_more && alt.automaton->Accepts(from)) {
        AddClosing(static_cast<int32_t>(i), mask);
      }
      if (node.byte == '\\') backslashes.push_back(i);
      i = node.next;
      continue;
    }
    const int32_t to = alt.automaton->Step(from, node.byte);
    const int32_t points = before + ((node.byte & 0xC0) != 0x80);
    const bool fits = limits.max_more == kNoLimit || points <= limits.max_more;
    if (to == Automaton::kDead || !fits ||
        !alt.automaton->CanFinish(
            to, limits.min_more - points,
            limits.max_more == kNoLimit ? kNoLimit : limits.max_more - points)) {
      i = node.next;
      continue;
    }
    text_states_[node.depth] = to;
    text_points_[node.depth] = points;
    trie_->SetTokens(node, mask);
    ++i;
  }
  for (const uint32_t b : backslashes) {
    uint32_t first = b;
    while (nodes[first].token < 0) ++first;
    const std::string_view before =
        std::string_view(trie_->piece(nodes[first].token)).substr(0, nodes[b].depth - 1u);
    const Arena::Mark mark = arena->mark();
    JsonState at;
    if (Take(state, before, arena, &at)) Walk(at, b, nodes[b].next, arena, mask);
    arena->Reset(mark);
  }
}

const TextMask& JsonMasks::TextMaskOf(Automaton* automaton, int32_t state) {
  const bool any = automaton->IsAnyText(state);  // the same for all automata
  if (any && trie_->any_text() != nullptr) return *trie_->any_text();
  const auto [id, fresh] =
      automaton_ids_.try_emplace(automaton, static_cast<uint32_t>(automaton_ids_.size()));
  const uint64_t key = (static_cast<uint64_t>(id->second) << 32) | static_cast<uint32_t>(state);
  const auto known = text_masks_.find(key);
  if (known != text_masks_.end()) return *known->second;
  if (text_masks_.size() >= kMaxTextMasks) text_masks_.clear();
  auto out = std::make_unique<TextMask>();
  out->inside = TokenMask(trie_->vocabulary());
  const auto nodes = trie_->nodes();
  text_states_[0] = state;
  for (uint32_t i = 0; i < nodes.size();) {
    const TrieNode& node = nodes[i];
    const int32_t from = text_states_[node.depth - 1u];
    const int32_t to = automaton->RowOf(from)[node.byte];
    if (node.byte == '"' || node.byte == '\\' || node.byte < 0x20) {
      if (node.byte == '"' && automaton->Accepts(from))
        out->quotes.push_back(static_cast<int32_t>(i));
      if (node.byte == '\\') EscapedTokens(automaton, from, i, out.get());
      i = node.next;
    } else if (to == Automaton::kDead) {
      i = node.next;
    } else {
      text_states_[node.depth] = to;
      trie_->SetTokens(node, &out->inside);
      ++i;
    }
  }
  if (any) return trie_->KeepAnyText(std::move(out));
  if (!machine_.grammar().languages.MayGrow()) return *(cut_text_ = std::move(out));
  return *text_masks_.emplace(key, std::move(out)).first->second;
}

void JsonMasks::WarmUpAnyText() {
  Automaton any(&machine_.grammar().languages, Languages::kAnyText);
  TextMaskOf(&any, any.start());
}

void WarmUp(const std::shared_ptr<const TokenTrie>& trie) {
  JsonGrammar grammar;
  JsonMachine machine(&grammar, Whitespace::kFlexible);
  JsonMasks(&machine, trie).WarmUpAnyText();
}

// Tokens that continue with an escape at node `backslash`, checked by the machine in a string of
// this automaton alone.
void JsonMasks::EscapedTokens(Automaton* automaton, int32_t state, uint32_t backslash,
                              TextMask* out) {
  const auto nodes = trie_->nodes();
  const Arena::Mark start = scratch_.mark();
  Level level = {};
  level.at = Level::At::kValue;
  ScalarAlt alt = {};
  alt.string = &kFreeString;
  alt.automaton = automaton;
  alt.state = state;
  Scalar scalar = {};
  scalar.kind = Scalar::Kind::kString;
  scalar.num_alts = 1;
  scalar.alts = scratch_.Copy(alt);
  const size_t base = nodes[backslash].depth - 1u;
  walk_states_[base] = {scratch_.Copy(level), scratch_.Copy(scalar), 0};
  for (uint32_t i = backslash; i < nodes[backslash].next;) {
    const TrieNode& node = nodes[i];
    const JsonState& from = walk_states_[node.depth - 1u];
    if (from.scalar->escape == Scalar::Escape::kNone && node.byte == '"') {
      if (automaton->Accepts(from.scalar->alts[0].state))
        out->escaped_quotes.push_back(static_cast<int32_t>(i));
      i = node.next;
    } else if (!machine_.Step(from, node.byte, &scratch_, &walk_states_[node.depth])) {
      i = node.next;
    } else {
      if (node.token >= 0) out->escapes.push_back(node.token);
      trie_->SetTokens(node, &out->inside);
      ++i;
    }
  }
  scratch_.Reset(start);
}

void JsonMasks::AllowSuffixes(const JsonState& closed, Arena* arena) {
  const auto nodes = trie_->suffixes();
  std::fill(suffix_allowed_.begin(), suffix_allowed_.end(), 0);
  walk_states_[0] = closed;
  walk_marks_[0] = arena->mark();
  for (uint32_t i = 0; i < nodes.size();) {
    const TrieNode& node = nodes[i];
    arena->Reset(walk_marks_[node.depth - 1u]);
    if (!machine_.Step(walk_states_[node.depth - 1u], node.byte, arena,
                       &walk_states_[node.depth])) {
      i = node.next;
      continue;
    }
    walk_marks_[node.depth] = arena->mark();
    suffix_allowed_[i] = 1;
    ++i;
  }
  arena->Reset(walk_marks_[0]);
}

void JsonMasks::AddClosing(int32_t quote, TokenMask* mask) {
  for (const auto& [suffix, token] : trie_->BehindQuote(quote)) {
    if (suffix < 0 || suffix_allowed_[static_cast<size_t>(suffix)] != 0)
      mask->Set(static_cast<size_t>(token));
  }
}

}  // namespace aisp
