// Sets of code points in Languages, and terms that are read by a rule instead of by sets.
#include "constrain/language.h"
#include "text/utf8.h"

namespace aisp {
namespace {

// Letters in both cases, digits, hyphen and dot, each as its own set.
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

// Names are indexed by their position, so that equal rests are one term.
TermId Languages::Hostname(const HostnamePlace& at) {
  constexpr uint64_t kWorkOfLabel = 2000;  // checking an internationalised label calls a library
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

// False: more than `limit` texts, or not made of literals.
bool Languages::AddTexts(TermId t, size_t limit, int depth,
                         std::vector<std::u32string>* out) const {
  constexpr int kMaxDepth = 1000;
  const Term& term = terms_[static_cast<size_t>(t)];
  if (depth > kMaxDepth || out->size() > limit) return false;
  switch (term.op) {
    case Op::kNothing:
      return true;
    case Op::kEmptyText:
      out->emplace_back();
      return true;
    case Op::kSet: {
      const CharSet& set = sets_[static_cast<size_t>(term.a)];
      if (set.Size() > limit) return false;
      for (const auto& [lo, hi] : set.ranges()) {
        for (uint32_t c = lo; c <= hi; ++c) out->emplace_back(1, static_cast<char32_t>(c));
      }
      return out->size() <= limit;
    }
    case Op::kConcat: {
      std::vector<std::u32string> heads, tails;
      if (!AddTexts(term.a, limit, depth + 1, &heads) ||
          !AddTexts(term.b, limit, depth + 1, &tails) ||
          out->size() + heads.size() * tails.size() > limit)
        return false;
      for (const std::u32string& head : heads) {
        for (const std::u32string& tail : tails) out->push_back(head + tail);
      }
      return true;
    }
    case Op::kUnion:
      for (const TermId part : term.parts) {
        if (!AddTexts(part, limit, depth + 1, out)) return false;
      }
      return out->size() <= limit;
    default:
      return false;
  }
}

std::optional<std::vector<std::string>> Languages::FewTexts(TermId t, size_t limit) const {
  std::vector<std::u32string> texts;
  if (!AddTexts(t, limit, 0, &texts)) return std::nullopt;
  std::vector<std::string> out;
  out.reserve(texts.size());
  for (const std::u32string& text : texts) out.push_back(ToUtf8(text));
  return out;
}

}  // namespace aisp
