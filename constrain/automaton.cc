#include "constrain/automaton.h"

#include <algorithm>
#include <map>

#include "text/utf8.h"

namespace aisp {
namespace {

constexpr size_t kMaxLiveSearch = 20'000;

constexpr Automaton::Row DeadRow() {
  Automaton::Row row{};
  row.fill(Automaton::kDead);
  return row;
}

}  // namespace

const Automaton::Row Automaton::kNoWay = DeadRow();

Automaton::Automaton(Languages* languages, TermId language) : languages_(*languages) {
  Partition(language);
  const int32_t root = TermIndex(language);
  if (Live(root)) start_ = Boundary(root);
}

void Automaton::Partition(TermId language) {
  std::vector<CharSet> sets;
  languages_.CollectSets(language, &sets);
  // Behaviour can change only where a set begins or ends; equal signatures form one class.
  std::vector<uint32_t> cuts = {0, 0xD800, 0xE000};
  for (const CharSet& set : sets) {
    for (const auto& [lo, hi] : set.ranges()) {
      cuts.push_back(lo);
      if (hi < kMaxCodePoint) cuts.push_back(hi + 1);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<std::vector<int32_t>> signatures(cuts.size());
  for (size_t s = 0; s < sets.size(); ++s) {
    for (const auto& [lo, hi] : sets[s].ranges()) {
      auto at = static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), lo) - cuts.begin());
      for (; at < cuts.size() && cuts[at] <= hi; ++at) {
        signatures[at].push_back(static_cast<int32_t>(s));
      }
    }
  }
  std::map<std::vector<int32_t>, int32_t> classes;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const uint32_t end = i + 1 < cuts.size() ? cuts[i + 1] : kMaxCodePoint + 1;
    const bool surrogates = cuts[i] == 0xD800;
    const auto [it, fresh] =
        classes.try_emplace(signatures[i], static_cast<int32_t>(class_size_.size()));
    if (fresh) {
      class_size_.push_back(0);
      class_sample_.push_back(cuts[i]);
    }
    const auto cls = static_cast<size_t>(it->second);
    if (!surrogates) {
      class_size_[cls] += end - cuts[i];
      class_sample_[cls] = cuts[i];
    }
    interval_begin_.push_back(cuts[i]);
    interval_class_.push_back(it->second);
  }
  for (uint32_t c = 0; c < 128; ++c) {
    ascii_[c] = static_cast<uint16_t>(interval_class_[IntervalOf(c)]);
  }
}

size_t Automaton::IntervalOf(uint32_t c) const {
  const auto it = std::upper_bound(interval_begin_.begin(), interval_begin_.end(), c);
  return static_cast<size_t>(it - interval_begin_.begin()) - 1;
}

int32_t Automaton::ClassOf(uint32_t c) const {
  return c < 128 ? ascii_[c] : interval_class_[IntervalOf(c)];
}

int32_t Automaton::TermIndex(TermId id) {
  const auto [it, fresh] = term_ids_.try_emplace(id, static_cast<int32_t>(terms_.size()));
  if (fresh) {
    Term term;
    term.id = id;
    term.accepts = languages_.AcceptsEmpty(id);
    if (term.accepts) term.live = 1;
    if (languages_.IsPlain(id)) term.live = id == Languages::kNothing ? 0 : 1;
    term.next.assign(class_size_.size(), -2);
    terms_.push_back(std::move(term));
  }
  return it->second;
}

int32_t Automaton::Next(int32_t term, int32_t cls) {
  const auto t = static_cast<size_t>(term);
  const auto c = static_cast<size_t>(cls);
  if (terms_[t].next[c] == -2) {
    int32_t next = -1;
    if (class_size_[c] > 0) {
      const TermId derived = languages_.Derive(terms_[t].id, class_sample_[c]);
      if (derived != Languages::kNothing) next = TermIndex(derived);
    }
    terms_[t].next[c] = next;
  }
  return terms_[t].next[c];
}

// Depth-first search for an accepting term. If it fails, all terms visited are dead, or are treated
// as dead when there were too many.
bool Automaton::Live(int32_t term) {
  if (terms_[static_cast<size_t>(term)].live >= 0) {
    return terms_[static_cast<size_t>(term)].live > 0;
  }
  std::vector<std::pair<int32_t, size_t>> path = {{term, 0}};  // a term and its next class
  std::vector<int32_t> seen = {term};
  std::vector<bool> is_seen(terms_.size(), false);
  is_seen[static_cast<size_t>(term)] = true;
  while (!path.empty() && seen.size() < kMaxLiveSearch) {
    auto& [at, cls] = path.back();
    if (cls == class_size_.size()) {
      path.pop_back();
      continue;
    }
    const int32_t next = Next(at, static_cast<int32_t>(cls++));
    if (next < 0) continue;
    if (terms_[static_cast<size_t>(next)].live > 0) {
      for (const auto& step : path) terms_[static_cast<size_t>(step.first)].live = 1;
      return true;
    }
    if (is_seen.size() < terms_.size()) is_seen.resize(terms_.size(), false);
    if (terms_[static_cast<size_t>(next)].live == 0 || is_seen[static_cast<size_t>(next)]) continue;
    is_seen[static_cast<size_t>(next)] = true;
    seen.push_back(next);
    path.emplace_back(next, 0);
  }
  if (!path.empty()) languages_.NoteCutSearch();
  for (const int32_t t : seen) terms_[static_cast<size_t>(t)].live = 0;
  return false;
}

bool Automaton::AnyLiveTerm(int32_t term, uint32_t lo, uint32_t hi) {
  if (lo > hi) return false;
  for (size_t i = IntervalOf(lo); i < interval_begin_.size() && interval_begin_[i] <= hi; ++i) {
    if (interval_begin_[i] == 0xD800) continue;
    const int32_t next = Next(term, interval_class_[i]);
    if (next >= 0 && Live(next)) return true;
  }
  return false;
}

bool Automaton::AnyLive(int32_t state, uint32_t lo, uint32_t hi, int32_t min_more,
                        int32_t max_more) {
  const int32_t term = states_[static_cast<size_t>(state)].term;
  if (min_more <= 0 && max_more < 0) return AnyLiveTerm(term, lo, hi);
  for (size_t i = IntervalOf(lo); i < interval_begin_.size() && interval_begin_[i] <= hi; ++i) {
    if (interval_begin_[i] == 0xD800) continue;
    const int32_t next = Next(term, interval_class_[i]);
    if (next >= 0 && Live(next) && CanFinish(Boundary(next), min_more, max_more)) return true;
  }
  return false;
}

bool Automaton::IsAnyText(int32_t state) const {
  const State& s = states_[static_cast<size_t>(state)];
  return s.need == 0 && terms_[static_cast<size_t>(s.term)].id == Languages::kAnyText;
}

int32_t Automaton::Boundary(int32_t term) { return Inside(term, 0, 0, 0, 0); }

std::pair<uint32_t, uint32_t> Automaton::RangeOf(uint32_t prefix, uint8_t need, uint8_t lo,
                                                 uint8_t hi) {
  const uint32_t open = 6u * (need - 1u);
  const uint32_t from = ((prefix << 6) | (lo & 63u)) << open;
  const uint32_t to = (((prefix << 6) | (hi & 63u)) << open) | ((1u << open) - 1);
  return {from, std::min(to, kMaxCodePoint)};
}

int32_t Automaton::Inside(int32_t term, uint8_t need, uint32_t prefix, uint8_t lo, uint8_t hi) {
  bool resolved = need == 0;
  int32_t target = term;
  if (need > 0) {
    const auto [from, to] = RangeOf(prefix, need, lo, hi);
    if (IntervalOf(from) == IntervalOf(to)) {
      target = Next(term, interval_class_[IntervalOf(from)]);
      if (target < 0 || !Live(target)) return kDead;
      resolved = true;
      prefix = 0;
    } else if (!AnyLiveTerm(term, from, to)) {
      return kDead;
    }
  }
  const uint64_t key = (static_cast<uint64_t>(target) << 40) | (static_cast<uint64_t>(need) << 38) |
                       (static_cast<uint64_t>(resolved) << 37) |
                       (static_cast<uint64_t>(prefix) << 16) | (static_cast<uint64_t>(lo) << 8) |
                       hi;
  const auto [it, fresh] = state_ids_.try_emplace(key, static_cast<int32_t>(states_.size()));
  if (fresh) states_.push_back({target, need, lo, hi, resolved, prefix, nullptr, {}});
  return it->second;
}

const Automaton::Row& Automaton::FillRow(int32_t state) {
  auto row = std::make_unique<Row>();
  row->fill(kDead);
  const State& s = states_[static_cast<size_t>(state)];
  if (s.need == 0) {
    FillBoundary(s.term, row.get());
  } else {
    FillInside(state, row.get());
  }
  State& filled = states_[static_cast<size_t>(state)];
  filled.row = std::move(row);
  for (size_t byte = 0; byte < 256; ++byte) filled.bytes[byte] = (*filled.row)[byte] != kDead;
  return *filled.row;
}

void Automaton::FillBoundary(int32_t term, Row* row) {
  std::vector<int32_t> by_class(class_size_.size(), -2);
  for (size_t b = 0; b < 128; ++b) {
    int32_t& target = by_class[ascii_[b]];
    if (target == -2) {
      const int32_t next = Next(term, ascii_[b]);
      target = next >= 0 && Live(next) ? Boundary(next) : kDead;
    }
    (*row)[b] = target;
  }
  for (uint32_t b = 0xC2; b <= 0xF4; ++b) {
    const uint8_t need = b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
    const uint32_t prefix = b & (need == 1 ? 0x1Fu : need == 2 ? 0x0Fu : 0x07u);
    const uint8_t lo = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80;
    const uint8_t hi = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
    (*row)[b] = Inside(term, need, prefix, lo, hi);
  }
}

void Automaton::FillInside(int32_t state, Row* row) {
  const int32_t term = states_[static_cast<size_t>(state)].term;
  const uint8_t need = states_[static_cast<size_t>(state)].need;
  const uint8_t lo = states_[static_cast<size_t>(state)].lo;
  const uint8_t hi = states_[static_cast<size_t>(state)].hi;
  const bool resolved = states_[static_cast<size_t>(state)].resolved;
  const uint32_t prefix = states_[static_cast<size_t>(state)].prefix;
  for (uint32_t b = lo; b <= hi; ++b) {
    const uint32_t bits = (prefix << 6) | (b & 63);
    if (resolved) {
      if (need == 1) {
        (*row)[b] = Boundary(term);
        continue;
      }
      const uint64_t key = (static_cast<uint64_t>(term) << 40) |
                           (static_cast<uint64_t>(need - 1) << 38) | (1ull << 37) | (0x80u << 8) |
                           0xBF;
      const auto [it, fresh] = state_ids_.try_emplace(key, static_cast<int32_t>(states_.size()));
      if (fresh) {
        states_.push_back({term, static_cast<uint8_t>(need - 1), 0x80, 0xBF, true, 0, nullptr, {}});
      }
      (*row)[b] = it->second;
    } else if (need == 1) {
      const int32_t next = Next(term, ClassOf(bits));
      (*row)[b] = next >= 0 && Live(next) ? Boundary(next) : kDead;
    } else {
      (*row)[b] = Inside(term, static_cast<uint8_t>(need - 1), bits, 0x80, 0xBF);
    }
  }
}

int32_t Automaton::StepCodePoint(int32_t state, uint32_t c) {
  const int32_t term = states_[static_cast<size_t>(state)].term, cls = ClassOf(c);
  const bool made = terms_[static_cast<size_t>(term)].next[static_cast<size_t>(cls)] != -2;
  if (!made && !languages_.MayGrow()) return kDead;
  const int32_t next = Next(term, cls);
  return next >= 0 && Live(next) ? Boundary(next) : kDead;
}

int32_t Automaton::Run(std::string_view text) {
  int32_t state = start_;
  for (size_t at = 0; at < text.size() && state != kDead;) {
    state = StepCodePoint(state, DecodeUtf8(text, &at));
  }
  return state;
}

bool Automaton::Matches(std::string_view text) {
  const int32_t state = Run(text);
  return state != kDead && Accepts(state);
}

}  // namespace aisp
