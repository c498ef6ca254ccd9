#include "constrain/language.h"

#include <algorithm>
#include <bit>
#include <tuple>

#include "text/utf8.h"

namespace aisp {
namespace {

uint64_t Mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9E3779B97F4A7C15u + (h << 6) + (h >> 2);
  h *= 0xFF51AFD7ED558CCDu;
  return h ^ (h >> 32);
}

}  // namespace

Languages::Languages(size_t max_terms) : max_terms_(max_terms) {
  Intern({Op::kNothing, false, true, 0, 0, 0, {}});
  Intern({Op::kEmptyText, true, true, 0, 0, 0, {}});
  // kAnyText repeats the set of all code points; its id is fixed, so it is made before the set.
  sets_.push_back(CharSet::Any());
  set_ids_[CharSet::Any()] = 0;
  Intern({Op::kRepeat, true, true, 3, 0, kUnbounded, {}});
  Intern({Op::kSet, false, true, 0, 0, 0, {}});
}

bool Languages::Late() {
  constexpr uint32_t kBetweenLooks = 256;
  if (timed_out_ || !deadline_.set() || ++asked_ % kBetweenLooks != 0) return timed_out_;
  if (deadline_.Passed()) timed_out_ = exhausted_ = true;
  return timed_out_;
}

TermId Languages::Intern(Term term) {
  if (Late()) return kNothing;
  uint64_t hash = Mix(static_cast<uint64_t>(term.op), static_cast<uint32_t>(term.a));
  hash = Mix(Mix(hash, static_cast<uint32_t>(term.b)), static_cast<uint32_t>(term.c));
  for (const TermId part : term.parts) hash = Mix(hash, static_cast<uint32_t>(part));
  if (2 * (terms_.size() + 1) > table_.size()) Grow();
  size_t at = hash & (table_.size() - 1);
  for (; table_[at] >= 0; at = (at + 1) & (table_.size() - 1)) {
    const auto id = static_cast<size_t>(table_[at]);
    const Term& other = terms_[id];
    if (hashes_[id] == hash && other.op == term.op && other.a == term.a && other.b == term.b &&
        other.c == term.c && other.parts == term.parts) {
      return table_[at];
    }
  }
  if (terms_.size() >= max_terms_) {
    exhausted_ = true;
    return kNothing;
  }
  table_[at] = static_cast<TermId>(terms_.size());
  term.alphabet = AlphabetOf(term);
  terms_.push_back(std::move(term));
  hashes_.push_back(hash);
  return table_[at];
}

void Languages::Grow() {
  table_.assign(std::max<size_t>(256, 2 * table_.size()), -1);
  for (size_t id = 0; id < terms_.size(); ++id) {
    size_t at = hashes_[id] & (table_.size() - 1);
    while (table_[at] >= 0) at = (at + 1) & (table_.size() - 1);
    table_[at] = static_cast<TermId>(id);
  }
}

TermId Languages::Set(const CharSet& set) {
  if (set.empty()) return kNothing;
  const auto [it, fresh] = set_ids_.try_emplace(set, static_cast<int32_t>(sets_.size()));
  if (fresh) sets_.push_back(set);
  return Intern({Op::kSet, false, true, it->second, 0, 0, {}});
}

Languages::Alphabet Languages::AlphabetOf(const CharSet& set) const {
  Alphabet out;
  for (const auto& [from, to] : set.ranges()) {
    for (uint32_t c = from; c <= std::min(to, 127u); ++c) {
      (c < 64 ? out.low : out.high) |= uint64_t{1} << (c & 63);
    }
    out.beyond = out.beyond || to > 127;
  }
  return out;
}

Languages::Alphabet Languages::AlphabetOf(const Term& term) const {
  const auto of = [this](TermId t) { return terms_[static_cast<size_t>(t)].alphabet; };
  Alphabet out;
  switch (term.op) {
    case Op::kNothing:
    case Op::kEmptyText:
      return out;
    case Op::kSet:
      return AlphabetOf(sets_[static_cast<size_t>(term.a)]);
    case Op::kRepeat:
      return static_cast<size_t>(term.a) < terms_.size() ? of(term.a)
                                                         : Alphabet{UINT64_MAX, UINT64_MAX, true};
    case Op::kConcat: {
      const Alphabet a = of(term.a), b = of(term.b);
      return {a.low | b.low, a.high | b.high, a.beyond || b.beyond};
    }
    case Op::kUnion:
      for (const TermId part : term.parts) {
        const Alphabet own = of(part);
        out = {out.low | own.low, out.high | own.high, out.beyond || own.beyond};
      }
      return out;
    case Op::kIntersect:
      out = of(term.parts[0]);
      for (const TermId part : term.parts) {
        const Alphabet own = of(part);
        out = {out.low & own.low, out.high & own.high, out.beyond && own.beyond};
      }
      return out;
    case Op::kHostname:
      return AlphabetOf(HostnameLetters());
    case Op::kNot:
      break;
  }
  return {UINT64_MAX, UINT64_MAX, true};
}

bool Languages::IsStar(TermId t) const {
  const Term& term = terms_[static_cast<size_t>(t)];
  return term.op == Op::kRepeat && term.b == 0 && term.c == kUnbounded &&
         terms_[static_cast<size_t>(term.a)].op == Op::kSet;
}

bool Languages::HoldsAll(TermId star, TermId t) const {
  const Term& repeat = terms_[static_cast<size_t>(star)];
  const Alphabet &all = repeat.alphabet, &own = terms_[static_cast<size_t>(t)].alphabet;
  if ((own.low & ~all.low) != 0 || (own.high & ~all.high) != 0) return false;
  if (!own.beyond) return true;
  const auto set = static_cast<size_t>(terms_[static_cast<size_t>(repeat.a)].a);
  static const CharSet kBeyond = CharSet::Of({{128, kMaxCodePoint}});
  return all.beyond && sets_[set].Intersect(kBeyond) == kBeyond;
}

void Languages::DropHeld(bool is_union, std::vector<TermId>* parts) const {
  std::vector<TermId> stars;
  std::copy_if(parts->begin(), parts->end(), std::back_inserter(stars),
               [this](TermId t) { return IsStar(t); });
  if (stars.empty() || parts->size() < 2) return;
  const std::vector<TermId> all = *parts;
  std::erase_if(*parts, [&](TermId t) {
    const auto& others = is_union ? stars : all;
    if (!is_union && !IsStar(t)) return false;
    return std::any_of(others.begin(), others.end(), [&](TermId other) {
      return other != t && (is_union ? HoldsAll(other, t) : HoldsAll(t, other));
    });
  });
}

bool Languages::BeginsWithAnyText(TermId t) const {
  const Term& term = terms_[static_cast<size_t>(t)];
  return t == kAnyText || (term.op == Op::kConcat && term.a == kAnyText);
}

TermId Languages::LeastTimes(TermId repeat) {
  const Term& term = terms_[static_cast<size_t>(repeat)];
  return Repeat(term.a, term.b, term.b);
}

TermId Languages::Concat(TermId a, TermId b) {
  if (a == kNothing || b == kNothing) return kNothing;
  if (a == kEmptyText) return b;
  if (b == kEmptyText) return a;
  if (a == kAnyText && BeginsWithAnyText(b)) return b;
  const Term& left = terms_[static_cast<size_t>(a)];
  if (left.op == Op::kConcat) {
    const TermId head = left.a, tail = left.b;
    return Concat(head, Concat(tail, b));
  }
  if (left.op == Op::kRepeat && left.b != left.c && a != kAnyText && BeginsWithAnyText(b)) {
    return Concat(LeastTimes(a), b);
  }
  const Term& right = terms_[static_cast<size_t>(b)];
  if (a == kAnyText && right.op == Op::kRepeat && right.b != right.c) {
    return Concat(a, LeastTimes(b));
  }
  if (a == kAnyText && right.op == Op::kConcat) {
    const TermId head = right.a, tail = right.b;
    const Term& first = terms_[static_cast<size_t>(head)];
    if (first.op == Op::kRepeat && first.b != first.c) {
      return Concat(a, Concat(LeastTimes(head), tail));
    }
  }
  return Intern(
      {Op::kConcat, left.nullable && right.nullable, left.plain && right.plain, a, b, 0, {}});
}

bool Languages::MergeRepeats(std::vector<TermId>* parts) {
  struct Counted {
    TermId body, tail;
    int64_t min, max;
    TermId whole;
    auto Key() const { return std::tie(body, tail, min, max); }
  };
  constexpr int64_t kNoEnd = INT64_MAX - 1;
  std::vector<Counted> counted;
  for (const TermId part : *parts) {
    const Term& term = terms_[static_cast<size_t>(part)];
    const bool alone = term.op != Op::kConcat;
    const Term& repeat = alone ? term : terms_[static_cast<size_t>(term.a)];
    if (repeat.op != Op::kRepeat) continue;
    counted.push_back({repeat.a, alone ? kEmptyText : term.b, repeat.b,
                       repeat.c == kUnbounded ? kNoEnd : repeat.c, part});
  }
  if (counted.size() < 2) return false;
  std::sort(counted.begin(), counted.end(),
            [](const Counted& a, const Counted& b) { return a.Key() < b.Key(); });
  bool merged = false;
  for (size_t i = 0, next = 1; i < counted.size(); i = next, next = i + 1) {
    Counted all = counted[i];
    for (; next < counted.size(); ++next) {
      const Counted& other = counted[next];
      if (other.body != all.body || other.tail != all.tail || other.min > all.max + 1) break;
      if (other.whole == all.whole) continue;
      all.max = std::max(all.max, other.max);
      std::erase(*parts, other.whole);
    }
    if (next == i + 1) continue;
    std::erase(*parts, all.whole);
    const auto max = all.max == kNoEnd ? kUnbounded : static_cast<int32_t>(all.max);
    parts->push_back(Concat(Repeat(all.body, static_cast<int32_t>(all.min), max), all.tail));
    merged = true;
  }
  return merged;
}

bool Languages::MergeHeads(std::vector<TermId>* parts) {
  std::vector<std::pair<TermId, TermId>> by_head;
  for (const TermId part : *parts) {
    const Term& term = terms_[static_cast<size_t>(part)];
    if (term.op == Op::kConcat) by_head.emplace_back(term.a, part);
  }
  if (by_head.size() < 2) return false;
  std::sort(by_head.begin(), by_head.end());
  by_head.erase(std::unique(by_head.begin(), by_head.end()), by_head.end());
  std::vector<TermId> gone, merged;
  for (size_t i = 0, next = 0; i < by_head.size(); i = next) {
    const TermId head = by_head[i].first;
    std::vector<TermId> tails;
    for (; next < by_head.size() && by_head[next].first == head; ++next) {
      tails.push_back(terms_[static_cast<size_t>(by_head[next].second)].b);
    }
    if (tails.size() < 2) continue;
    for (size_t k = i; k < next; ++k) gone.push_back(by_head[k].second);
    merged.push_back(Concat(head, Union(tails)));
  }
  if (merged.empty()) return false;
  std::sort(gone.begin(), gone.end());
  std::erase_if(*parts, [&](TermId t) { return std::binary_search(gone.begin(), gone.end(), t); });
  parts->insert(parts->end(), merged.begin(), merged.end());
  return true;
}

// Merging heads asks for the same unions of tails repeatedly: where two heads share a tail at each
// level, as often as there are paths, which doubles per level.
TermId Languages::Make(Op op, const std::vector<TermId>& parts) {
  if (const Joined& kept = JoinedOf(op, parts); kept.op == op && kept.parts == parts)
    return kept.is;
  joined_parts_ += parts.size();
  const TermId out = MakeAnew(op, parts);
  if (!exhausted_) JoinedOf(op, parts) = {op, parts, out};
  return out;
}

Languages::Joined& Languages::JoinedOf(Op op, const std::vector<TermId>& parts) {
  constexpr size_t kMost = 1u << 12;
  if (joined_.size() < std::min(kMost, terms_.size())) {
    joined_.assign(std::min(kMost, std::bit_ceil(2 * terms_.size())), {});
  }
  uint64_t hash = static_cast<uint64_t>(op);
  for (const TermId part : parts) hash = Mix(hash, static_cast<uint32_t>(part));
  return joined_[hash & (joined_.size() - 1)];
}

TermId Languages::MakeAnew(Op op, const std::vector<TermId>& parts) {
  const bool is_union = op == Op::kUnion;
  std::vector<TermId> flat;
  CharSet set = is_union ? CharSet() : CharSet::Any();
  bool any_set = false;
  for (const TermId part : parts) {
    const Term& term = terms_[static_cast<size_t>(part)];
    if (term.op == op) {
      flat.insert(flat.end(), term.parts.begin(), term.parts.end());
    } else {
      flat.push_back(part);
    }
  }
  std::vector<TermId> out;
  for (const TermId part : flat) {
    const Term& term = terms_[static_cast<size_t>(part)];
    if (part == (is_union ? kAnyText : kNothing)) return part;
    if (part == (is_union ? kNothing : kAnyText)) continue;
    if (term.op == Op::kSet) {
      any_set = true;
      const CharSet& own = sets_[static_cast<size_t>(term.a)];
      set = is_union ? set.Union(own) : set.Intersect(own);
    } else {
      out.push_back(part);
    }
  }
  if (any_set) {
    const TermId merged = Set(set);
    if (merged == kNothing && !is_union) return kNothing;
    out.push_back(merged);
  }
  DropHeld(is_union, &out);
  if (is_union && (MergeRepeats(&out) || MergeHeads(&out))) return Make(op, out);
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  if (out.empty()) return is_union ? kNothing : kAnyText;
  if (out.size() == 1) return out[0];
  bool nullable = !is_union, plain = is_union;
  for (const TermId part : out) {
    const Term& term = terms_[static_cast<size_t>(part)];
    nullable = is_union ? nullable || term.nullable : nullable && term.nullable;
    plain = plain && term.plain;
    // A text and its complement.
    if (term.op == Op::kNot && std::binary_search(out.begin(), out.end(), term.a)) {
      return is_union ? kAnyText : kNothing;
    }
  }
  if (!is_union && std::binary_search(out.begin(), out.end(), kEmptyText)) {
    return nullable ? kEmptyText : kNothing;
  }
  return Intern({op, nullable, plain, 0, 0, 0, std::move(out)});
}

TermId Languages::Union(const std::vector<TermId>& parts) { return Make(Op::kUnion, parts); }

TermId Languages::Intersect(const std::vector<TermId>& parts) {
  return Make(Op::kIntersect, parts);
}

TermId Languages::Not(TermId a) {
  if (a == kNothing) return kAnyText;
  if (a == kAnyText) return kNothing;
  const Term& term = terms_[static_cast<size_t>(a)];
  if (term.op == Op::kNot) return term.a;
  return Intern({Op::kNot, !term.nullable, false, a, 0, 0, {}});
}

TermId Languages::Repeat(TermId a, int32_t min, int32_t max) {
  if (max == 0) return kEmptyText;
  if (a == kNothing) return min == 0 ? kEmptyText : kNothing;
  if (a == kEmptyText || a == kAnyText) return a;
  const Term& term = terms_[static_cast<size_t>(a)];
  if (term.nullable) min = 0;
  if (min == 1 && max == 1) return a;
  if (term.op == Op::kRepeat && term.b == 0 && term.c == kUnbounded) return a;
  if (min == 0 && max == kUnbounded && term.op == Op::kSet && term.a == 0) return kAnyText;
  return Intern({Op::kRepeat, min == 0 || term.nullable, term.plain, a, min, max, {}});
}

TermId Languages::Literal(std::string_view text) {
  const std::u32string points = ToUtf32(text);
  TermId out = kEmptyText;
  for (size_t i = points.size(); i-- > 0;) out = Concat(Set(CharSet::One(points[i])), out);
  return out;
}

TermId Languages::Literals(std::vector<std::u32string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return TrieOf(texts, 0, texts.size(), 0);
}

TermId Languages::TrieOf(const std::vector<std::u32string>& texts, size_t begin, size_t end,
                         size_t depth) {
  if (end - begin == 1) {
    TermId out = kEmptyText;
    for (size_t i = texts[begin].size(); i-- > depth;) {
      out = Concat(Set(CharSet::One(texts[begin][i])), out);
    }
    return out;
  }
  std::vector<TermId> parts;
  if (begin < end && texts[begin].size() == depth) {
    parts.push_back(kEmptyText);
    ++begin;
  }
  while (begin < end) {
    size_t next = begin;
    while (next < end && texts[next][depth] == texts[begin][depth]) ++next;
    const TermId head = Set(CharSet::One(texts[begin][depth]));
    parts.push_back(Concat(head, TrieOf(texts, begin, next, depth + 1)));
    begin = next;
  }
  return Union(parts);
}

TermId Languages::Length(int32_t min, int32_t max) { return Repeat(Set(CharSet::Any()), min, max); }

TermId Languages::Derive(TermId t, uint32_t c) {
  ++derivation_;
  if (derivation_ == 0) {  // the numbers wrap around
    std::fill(derivation_of_.begin(), derivation_of_.end(), 0);
    ++derivation_;
  }
  return DeriveBelow(t, c);
}

// Terms share subterms: without memoisation the time could be exponential in their number.
TermId Languages::DeriveBelow(TermId t, uint32_t c) {
  const auto at = static_cast<size_t>(t);
  if (const Term& term = terms_[at]; term.op <= Op::kSet) {
    const bool in = term.op == Op::kSet && sets_[static_cast<size_t>(term.a)].Contains(c);
    return in ? kEmptyText : kNothing;
  }
  if (Late()) return kNothing;
  if (at < derivation_of_.size() && derivation_of_[at] == derivation_) return derived_[at];
  constexpr int32_t kMaxDepth = 5000;  // of the recursion
  if (depth_ >= kMaxDepth) {
    exhausted_ = true;
    return kNothing;
  }
  if (const Derivative& kept = KeptOf(t, c); kept.of == t && kept.by == c) return kept.is;
  ++depth_;
  ++work_;
  const TermId out = DeriveTerm(t, c);
  --depth_;
  if (!exhausted_) KeptOf(t, c) = {t, c, out};
  if (at >= derivation_of_.size()) {
    derivation_of_.resize(terms_.size(), 0);
    derived_.resize(terms_.size(), kNothing);
  }
  derivation_of_[at] = derivation_;
  derived_[at] = out;
  return out;
}

Languages::Derivative& Languages::KeptOf(TermId t, uint32_t c) {
  constexpr size_t kMost = 1u << 16;
  if (kept_.size() < std::min(kMost, terms_.size())) {
    kept_.assign(std::min(kMost, std::bit_ceil(2 * terms_.size())), {});
  }
  return kept_[Mix(static_cast<uint32_t>(t), c) & (kept_.size() - 1)];
}

TermId Languages::DeriveTerm(TermId t, uint32_t c) {
  const Term& term = terms_[static_cast<size_t>(t)];
  switch (term.op) {
    case Op::kNothing:
    case Op::kEmptyText:
    case Op::kSet:
      break;  // DeriveBelow
    case Op::kConcat: {
      const TermId head = term.a, tail = term.b;
      const TermId first = Concat(DeriveBelow(head, c), tail);
      if (!AcceptsEmpty(head)) return first;
      return Union({first, DeriveBelow(tail, c)});
    }
    case Op::kNot:
      return Not(DeriveBelow(term.a, c));
    case Op::kRepeat: {
      if (t == kAnyText) return t;
      const TermId body = term.a;
      const int32_t min = std::max(term.b - 1, 0);
      const int32_t max = term.c == kUnbounded ? kUnbounded : term.c - 1;
      return Concat(DeriveBelow(body, c), Repeat(body, min, max));
    }
    case Op::kUnion:
    case Op::kIntersect:
      return DeriveParts(t, c);
    case Op::kHostname: {
      const auto next = NextOfHostname(hostnames_[static_cast<size_t>(term.a)], c);
      return next ? Hostname(*next) : kNothing;
    }
  }
  return kNothing;
}

TermId Languages::DeriveParts(TermId t, uint32_t c) {
  const Op op = terms_[static_cast<size_t>(t)].op;
  const std::vector<TermId> parts = terms_[static_cast<size_t>(t)].parts;
  std::vector<TermId> out;
  out.reserve(parts.size());
  for (const TermId part : parts) {
    const TermId next = DeriveBelow(part, c);
    if (op == Op::kIntersect && next == kNothing) return kNothing;
    if (op == Op::kUnion && next == kNothing) continue;
    out.push_back(next);
  }
  return Make(op, out);
}

}  // namespace aisp
