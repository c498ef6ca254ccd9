// The sets of code points of Languages, and the terms that are read by a rule instead of by sets.
#include "constrain/language.h"

namespace aisp {
namespace {

// Letters in both cases, digits, hyphen, point: each by itself.
std::vector<CharSet> LettersOfHostnames() {
  std::vector<CharSet> out;
  for (uint32_t c = 'a'; c <= 'z'; ++c) out.push_back(CharSet::Of({{c - 32, c - 32}, {c, c}}));
  for (uint32_t c = '0'; c <= '9'; ++c) out.push_back(CharSet::Of({{c, c}}));
  out.push_back(CharSet::Of({{'-', '-'}}));
  out.push_back(CharSet::Of({{'.', '.'}}));
  return out;
}

}  // namespace

CharSet Languages::HostnameLetters() {
  return CharSet::Of({{'-', '.'}, {'0', '9'}, {'A', 'Z'}, {'a', 'z'}});
}

// Names are found by where they stand, so that equal rests are one term.
TermId Languages::Hostname(const HostnamePlace& at) {
  constexpr uint64_t kWorkOfLabel = 2000;  // an internationalised label is asked of a library
  const auto [it, fresh] = hostname_ids_.try_emplace(at.Key(), kNothing);
  if (!fresh) return it->second;
  const auto index = static_cast<int32_t>(hostnames_.size());
  hostnames_.push_back(at);
  if (at.label.size() >= 4) work_ += kWorkOfLabel;
  return it->second = Intern({Op::kHostname, IsWholeHostname(at), true, index, 0, 0, {}});
}

bool Languages::HoldsHostname(TermId t) const {
  std::vector<CharSet> sets;
  return CollectSets(t, &sets);
}

bool Languages::CollectSets(TermId t, std::vector<CharSet>* out) const {
  bool hostname = false;
  std::vector<TermId> open = {t};
  std::vector<bool> seen(terms_.size(), false);
  while (!open.empty()) {
    const TermId id = open.back();
    open.pop_back();
    if (seen[static_cast<size_t>(id)]) continue;
    seen[static_cast<size_t>(id)] = true;
    const Term& term = terms_[static_cast<size_t>(id)];
    switch (term.op) {
      case Op::kSet:
        out->push_back(sets_[static_cast<size_t>(term.a)]);
        break;
      case Op::kHostname:
        hostname = true;
        for (const CharSet& letter : LettersOfHostnames()) out->push_back(letter);
        break;
      case Op::kConcat:
        open.push_back(term.a);
        open.push_back(term.b);
        break;
      case Op::kNot:
      case Op::kRepeat:
        open.push_back(term.a);
        break;
      default:
        open.insert(open.end(), term.parts.begin(), term.parts.end());
    }
  }
  return hostname;
}

}  // namespace aisp
