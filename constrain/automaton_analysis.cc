// Analyses of the whole automaton: the number of texts and their lengths.
#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_set>

#include "constrain/automaton.h"

namespace aisp {
namespace {

constexpr uint64_t kManyTexts = uint64_t{1} << 40;
constexpr size_t kMaxLengthTable = 16'000'000;  // bits
constexpr size_t kMaxShortestSearch = 4000;     // states visited
constexpr size_t kMaxShortestKept = 4096;

// Bytes in order of preference: letters first, those that JSON escapes last.
std::array<uint8_t, 256> BytesByTaste() {
  std::array<uint8_t, 256> bytes{};
  const auto taste = [](int byte) {
    if (byte >= 'a' && byte <= 'z') return 0;
    if ((byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9')) return 1;
    return byte < 0x20 || byte == '"' || byte == '\\' ? 3 : 2;
  };
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  std::stable_sort(bytes.begin(), bytes.end(),
                   [&taste](uint8_t a, uint8_t b) { return taste(a) < taste(b); });
  return bytes;
}

}  // namespace

std::vector<int32_t> Automaton::StatesFrom(int32_t state, size_t limit) {
  std::vector<int32_t> out;
  if (state != kDead) out.push_back(state);
  for (size_t i = 0; i < out.size(); ++i) {
    for (const int32_t next : RowOf(out[i])) {
      if (next == kDead || out.size() >= limit) continue;
      if (std::find(out.begin(), out.end(), next) == out.end()) out.push_back(next);
    }
  }
  return out;
}

bool Automaton::IsNarrow(Languages* languages, TermId language) {
  constexpr uint64_t kMaxWork = 1'500'000;  // about 0.1 s
  const uint64_t begin = languages->work();
  Automaton a(languages, language);
  size_t level_end = a.terms_.size();  // terms before it have at most the distance of `t`
  for (size_t t = 0; t < a.terms_.size(); ++t) {
    if (t == level_end) level_end = a.terms_.size();
    if (languages->Exhausted() || a.terms_.size() - level_end > kMaxWidth) return false;
    if (a.terms_.size() > kMaxExplored || languages->work() - begin > kMaxWork) return true;
    for (size_t c = 0; c < a.class_size_.size(); ++c)
      a.Next(static_cast<int32_t>(t), static_cast<int32_t>(c));
  }
  return !languages->Exhausted();
}

bool Automaton::Explore() {
  const bool hostname = !terms_.empty() && languages_.HoldsHostname(terms_[0].id);
  const size_t most = hostname ? kMaxAnalysedHostnames : kMaxAnalysed;
  for (size_t t = 0; t < terms_.size(); ++t) {
    if (terms_.size() > most || languages_.Exhausted()) return false;
    if (!Live(static_cast<int32_t>(t))) continue;
    for (size_t c = 0; c < class_size_.size(); ++c)
      Next(static_cast<int32_t>(t), static_cast<int32_t>(c));
  }
  for (size_t t = 0; t < terms_.size(); ++t) Live(static_cast<int32_t>(t));
  return terms_.size() <= most;
}

// Repeatedly removes terms whose successors are all removed: their texts can be counted. What
// remains is on a cycle or leads to one.
bool Automaton::Analyse() {
  if (analysed_) return analysable_;
  analysed_ = true;
  analysable_ = Explore();
  if (!analysable_) return false;
  const size_t n = terms_.size();
  infos_.assign(n, {});
  std::vector<std::vector<int32_t>> before(n);
  std::vector<size_t> open(n, 0);
  std::vector<int32_t> ready;
  for (size_t t = 0; t < n; ++t) {
    if (terms_[t].live <= 0) continue;
    for (const int32_t next : terms_[t].next) {
      if (next < 0 || terms_[static_cast<size_t>(next)].live <= 0) continue;
      before[static_cast<size_t>(next)].push_back(static_cast<int32_t>(t));
      ++open[t];
    }
    infos_[t].infinite = true;
    if (open[t] == 0) ready.push_back(static_cast<int32_t>(t));
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    const auto t = static_cast<size_t>(ready[i]);
    Info& info = infos_[t];
    info = {false, terms_[t].accepts ? 1u : 0u, 0};
    for (size_t c = 0; c < class_size_.size(); ++c) {
      const int32_t next = terms_[t].next[c];
      if (next < 0 || terms_[static_cast<size_t>(next)].live <= 0) continue;
      const Info& after = infos_[static_cast<size_t>(next)];
      info.count =
          std::min(kManyTexts, info.count + std::min(kManyTexts, after.count) * class_size_[c]);
      info.longest = std::max(info.longest, after.longest + 1);
    }
    for (const int32_t b : before[t]) {
      if (--open[static_cast<size_t>(b)] == 0) ready.push_back(b);
    }
  }
  return true;
}

Automaton::Info Automaton::InfoOf(int32_t state) const {
  const State& s = states_[static_cast<size_t>(state)];
  if (s.resolved) return infos_[static_cast<size_t>(s.term)];
  const auto [from, to] = RangeOf(s.prefix, s.need, s.lo, s.hi);
  return InfoWithin(s.term, from, to);
}

Automaton::Info Automaton::InfoWithin(int32_t term, uint32_t lo, uint32_t hi) const {
  Info out;
  for (size_t i = IntervalOf(lo); i < interval_begin_.size() && interval_begin_[i] <= hi; ++i) {
    if (interval_begin_[i] == 0xD800) continue;
    const auto cls = static_cast<size_t>(interval_class_[i]);
    const int32_t next = terms_[static_cast<size_t>(term)].next[cls];
    if (next < 0 || terms_[static_cast<size_t>(next)].live <= 0) continue;
    const uint32_t end =
        i + 1 < interval_begin_.size() ? interval_begin_[i + 1] - 1 : kMaxCodePoint;
    const uint64_t points = std::min(hi, end) - std::max(lo, interval_begin_[i]) + 1;
    const Info& after = infos_[static_cast<size_t>(next)];
    out.infinite = out.infinite || after.infinite;
    out.count = std::min(kManyTexts, out.count + after.count * points);
    out.longest = std::max(out.longest, after.longest + 1);
  }
  return out;
}

std::vector<std::string> Automaton::Texts(size_t limit) {
  std::vector<std::string> out;
  std::vector<std::pair<int32_t, std::string>> open = {{start_, ""}};
  while (start_ != kDead && !open.empty() && out.size() <= limit) {
    const auto [state, text] = std::move(open.back());
    open.pop_back();
    if (Accepts(state)) out.push_back(text);
    for (int byte = 255; byte >= 0; --byte) {
      const int32_t next = Step(state, static_cast<uint8_t>(byte));
      if (next != kDead) open.emplace_back(next, text + static_cast<char>(byte));
    }
  }
  return out;
}

// Breadth-first search over pairs of a state and the number of code points still required.
std::optional<std::string> Automaton::Shortest(int32_t state, int32_t min_more) {
  min_more = std::max(min_more, 0);
  if (IsAnyText(state)) return std::string(static_cast<size_t>(min_more), 'a');
  const auto key_of = [](int32_t at, int32_t more) {
    return static_cast<uint64_t>(at) << 32 | static_cast<uint32_t>(more);
  };
  const auto known = shortest_.find(key_of(state, min_more));
  if (known != shortest_.end()) return known->second;
  static const std::array<uint8_t, 256> kBytes = BytesByTaste();
  struct Place {
    int32_t state, more, before;
    uint8_t byte;
  };
  std::vector<Place> places = {{state, min_more, -1, 0}};
  std::unordered_set<uint64_t> met = {key_of(state, min_more)};
  std::optional<std::string> out;
  for (size_t i = 0; i < places.size() && places.size() < kMaxShortestSearch; ++i) {
    const Place at = places[i];
    if (at.more == 0 && Accepts(at.state)) {
      out.emplace();
      for (auto p = static_cast<int32_t>(i); places[static_cast<size_t>(p)].before >= 0;
           p = places[static_cast<size_t>(p)].before)
        out->push_back(static_cast<char>(places[static_cast<size_t>(p)].byte));
      std::reverse(out->begin(), out->end());
      break;
    }
    const Row row = RowOf(at.state);
    for (const uint8_t byte : kBytes) {
      const int32_t next = row[byte];
      if (next == kDead) continue;
      const bool lead = (byte & 0xC0) != 0x80;
      const int32_t more = lead ? std::max(at.more - 1, 0) : at.more;
      if (met.insert(key_of(next, more)).second)
        places.push_back({next, more, static_cast<int32_t>(i), byte});
    }
  }
  if (shortest_.size() >= kMaxShortestKept) shortest_.clear();
  shortest_[key_of(state, min_more)] = out;
  return out;
}

// By term: its distinct successors. There are many classes but few successors.
std::vector<std::vector<size_t>> Automaton::DistinctNext() const {
  std::vector<std::vector<size_t>> out(terms_.size());
  for (size_t t = 0; t < terms_.size(); ++t) {
    for (const int32_t next : terms_[t].next) {
      if (next >= 0 && terms_[static_cast<size_t>(next)].live > 0) {
        out[t].push_back(static_cast<size_t>(next));
      }
    }
    std::sort(out[t].begin(), out[t].end());
    out[t].erase(std::unique(out[t].begin(), out[t].end()), out[t].end());
  }
  return out;
}

bool Automaton::PrepareLengths(int32_t max_length) {
  if (start_ == kDead || IsAnyText(start_)) return true;
  if (!Analyse()) return false;
  const size_t n = terms_.size();
  if (max_length < 0) max_length = 0;
  // Another part of the schema may use the same language with other limits.
  if (static_cast<size_t>(max_length) < by_length_.size()) return true;
  if (static_cast<size_t>(max_length + 1) * n > kMaxLengthTable) return false;
  by_length_.assign(static_cast<size_t>(max_length) + 1, std::vector<bool>(n, false));
  for (size_t t = 0; t < n; ++t) by_length_[0][t] = terms_[t].accepts;
  const auto next_of = DistinctNext();
  for (size_t length = 1; length < by_length_.size(); ++length) {
    const std::vector<bool>& shorter = by_length_[length - 1];
    for (size_t t = 0; t < n; ++t) {
      by_length_[length][t] = std::any_of(next_of[t].begin(), next_of[t].end(),
                                          [&](size_t next) { return shorter[next]; });
    }
  }
  FindSlack();
  return true;
}

void Automaton::FindSlack() {
  size_t slack = 0, nearest = 0;
  never_ends_ = true;
  for (size_t t = 0; t < terms_.size(); ++t) {
    if (terms_[t].live <= 0) continue;
    never_ends_ = never_ends_ && infos_[t].infinite;
    size_t length = by_length_.size();
    while (length > slack && by_length_[length - 1][t]) --length;
    slack = std::max(slack, length);
    length = 0;
    while (length < by_length_.size() && !by_length_[length][t]) ++length;
    nearest = std::max(nearest, length);
  }
  const size_t most = by_length_.size() / 2;
  slack_ = slack <= most ? std::optional(static_cast<int32_t>(slack)) : std::nullopt;
  nearest_ = nearest <= most ? std::optional(static_cast<int32_t>(nearest)) : std::nullopt;
}

bool Automaton::AllAtLeast(int32_t min) const {
  constexpr size_t kMaxSteps = 1'000'000;
  const size_t n = terms_.size();
  if (start_ == kDead || static_cast<size_t>(min) * n > kMaxSteps) return false;
  const auto next_of = DistinctNext();
  std::vector<bool> at(n, false), after;
  at[static_cast<size_t>(states_[static_cast<size_t>(start_)].term)] = true;
  for (int32_t length = 0; length < min; ++length) {
    after.assign(n, false);
    for (size_t t = 0; t < n; ++t) {
      if (!at[t]) continue;
      if (terms_[t].accepts) return false;
      for (const size_t next : next_of[t]) after[next] = true;
    }
    at.swap(after);
  }
  return true;
}

bool Automaton::AllAtMost(int32_t max) const {
  if (start_ == kDead || infos_.empty()) return false;
  const Info& info = infos_[static_cast<size_t>(states_[static_cast<size_t>(start_)].term)];
  return !info.infinite && info.longest <= max;
}

bool Automaton::CanFinish(int32_t state, int32_t min_more, int32_t max_more) {
  const State& s = states_[static_cast<size_t>(state)];
  min_more = std::max(min_more, 0);
  if (max_more >= 0 && max_more < min_more) return false;
  if (terms_[static_cast<size_t>(s.term)].id == Languages::kAnyText) return true;
  if (!s.resolved) {
    // The open code point is unknown: some completion must lead to a term that can finish.
    const auto [from, to] = RangeOf(s.prefix, s.need, s.lo, s.hi);
    const int32_t term = s.term;
    for (size_t i = IntervalOf(from); i < interval_begin_.size() && interval_begin_[i] <= to; ++i) {
      const int32_t next = Next(term, interval_class_[i]);
      if (next >= 0 && Live(next) && CanFinish(Boundary(next), min_more, max_more)) return true;
    }
    return false;
  }
  const auto term = static_cast<size_t>(s.term);
  if (max_more < 0) return infos_[term].infinite || infos_[term].longest >= min_more;
  const auto last = std::min(static_cast<size_t>(max_more), by_length_.size() - 1);
  for (auto n = static_cast<size_t>(min_more); n <= last; ++n) {
    if (by_length_[n][term]) return true;
  }
  return false;
}

}  // namespace aisp
