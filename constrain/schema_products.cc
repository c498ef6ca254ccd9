// Combinations of alternatives: all of, exactly one of.
#include <algorithm>
#include <iterator>
#include <utility>

#include "constrain/schema_types.h"
#include "text/utf8.h"

namespace aisp {
namespace {

constexpr size_t kMaxProduct = 4096;
constexpr size_t kFewPairs = 4;   // merged as they are
constexpr size_t kManyWays = 16;  // of strings or numbers, merged into one
constexpr size_t kMaxKeyMembers = 32;

}  // namespace

SchemaTypes::KeyMembers& SchemaTypes::KeyMembersOf(const Conjunction& all) {
  const auto [it, fresh] = key_members_.try_emplace(all);
  KeyMembers& found = it->second;
  if (!fresh) return found;
  found.all = &it->first;
  size_t asked = 0;
  for (const AtomId id : all) {
    if (AtomAt(id).kind != Atom::Kind::kRequired || ++asked > kMaxKeyMembers) continue;
    const std::string name = AtomAt(id).name;
    const ExprId member = MemberNamed(all, name);
    found.members.emplace(name, member);
    if (const auto* few = constants_.Of(member)) found.required.emplace_back(name, few);
  }
  return found;
}

std::vector<SchemaTypes::KeyMembers*> SchemaTypes::KeyMembersOfAll(const Alternatives& ways,
                                                                   JsonType type) {
  std::vector<KeyMembers*> out;
  for (const Conjunction& all : ways) {
    if (type == JsonType::kObject && !failed_) out.push_back(&KeyMembersOf(all));
  }
  return out;
}

// Whether a member is required in `one` with a value that the other does not allow.
bool SchemaTypes::NeedsValueOf(const KeyMembers& one, KeyMembers* other) {
  for (const auto& [name, values] : one.required) {
    auto member = other->members.find(name);
    if (member == other->members.end())
      member = other->members.emplace(name, MemberNamed(*other->all, name)).first;
    if (member->second == Exprs::kTrue) continue;
    bool meets = false;
    if (const auto* own = constants_.Of(member->second)) {
      meets = std::any_of(values->begin(), values->end(), [&](int32_t value) {
        return std::binary_search(own->begin(), own->end(), value);
      });
    } else {
      meets = std::any_of(values->begin(), values->end(), [&](int32_t value) {
        return constants_.Fits(member->second, value) != SchemaConstants::Fit::kNo;
      });
    }
    if (!meets) return true;
  }
  return false;
}

bool SchemaTypes::AreApart(const std::vector<KeyMembers*>& a, const std::vector<KeyMembers*>& b) {
  return std::all_of(a.begin(), a.end(), [&](KeyMembers* one) {
    return std::all_of(b.begin(), b.end(), [&](KeyMembers* other) { return AreApart(one, other); });
  });
}

void SchemaTypes::DropImplied(const KeyMembers& found, const KeyMembers* done, Conjunction* both) {
  for (const auto& [name, values] : found.required) {
    // A restriction to these values is implied by an equal one on the other side.
    const auto same = [&, &n = name](const auto& other) { return other.first == n; };
    if (done != nullptr && std::any_of(done->required.begin(), done->required.end(), same))
      continue;
    std::erase_if(*both, [&](AtomId id) {
      const Atom& atom = AtomAt(id);
      if (atom.kind != Atom::Kind::kProperties || !atom.patterns.empty() ||
          atom.rest != Exprs::kTrue || atom.names.size() != 1 || atom.names[0].first != name)
        return false;
      // The restriction that states the values itself is kept.
      if (std::binary_search(found.all->begin(), found.all->end(), id)) return false;
      const ExprId member = atom.names[0].second;
      return std::all_of(values->begin(), values->end(), [&](int32_t value) {
        return constants_.Fits(member, value) == SchemaConstants::Fit::kYes;
      });
    });
  }
}

AtomId SchemaTypes::AtomOf(Atom atom) { return e_.node(e_.MakeAtom(std::move(atom))).index; }

void SchemaTypes::MergeMany(Alternatives* ways, JsonType type) {
  const bool strings = type == JsonType::kString, numbers = type == JsonType::kNumber;
  if (ways->size() <= kManyWays || (!strings && !numbers) || failed_) return;
  Alternatives out;
  std::vector<TermId> languages;
  std::vector<std::u32string> texts;
  Atom merged;
  for (Conjunction& all : *ways) {
    const bool plain = std::all_of(all.begin(), all.end(), [&](AtomId id) {
      return strings ? AtomAt(id).kind == Atom::Kind::kLanguage
                     : all.size() == 1 && AtomAt(id).number.IsList();
    });
    if (!plain || all.empty()) {
      out.push_back(std::move(all));
    } else if (numbers) {
      const auto& own = *AtomAt(all[0]).number.values;
      if (!merged.number.values) merged.number.values.emplace();
      merged.number.values->insert(merged.number.values->end(), own.begin(), own.end());
    } else {
      std::vector<TermId> parts;
      for (const AtomId id : all) parts.push_back(AtomAt(id).language);
      const TermId language = g_.languages.Intersect(parts);
      const auto few = g_.languages.FewTexts(language, SchemaConstants::kMaxFew);
      if (!few) languages.push_back(language);
      for (size_t i = 0; few && i < few->size(); ++i) texts.push_back(ToUtf32((*few)[i]));
    }
  }
  if (!texts.empty()) languages.push_back(g_.languages.Literals(std::move(texts)));
  if (!languages.empty()) {
    merged.kind = Atom::Kind::kLanguage;
    merged.language = g_.languages.Union(languages);
  } else if (merged.number.values) {
    merged.kind = Atom::Kind::kNumber;
    std::sort(merged.number.values->begin(), merged.number.values->end());
  }
  if (merged.kind != Atom::Kind::kType) out.push_back({AtomOf(std::move(merged))});
  *ways = std::move(out);
}

std::optional<Alternatives> SchemaTypes::ExactlyOneConstant(const std::vector<Alternatives>& parts,
                                                            JsonType type) {
  if (type != JsonType::kString && type != JsonType::kNumber) return std::nullopt;
  std::map<std::string, int> texts;  // number of parts that contain it
  std::map<Decimal, int> numbers;
  for (const Alternatives& ways : parts) {
    std::set<std::string> own_texts;
    std::set<Decimal> own_numbers;
    for (const Conjunction& all : ways) {
      if (all.size() != 1) return std::nullopt;
      const Atom& atom = AtomAt(all[0]);
      if (type == JsonType::kNumber) {
        if (!atom.number.IsList()) return std::nullopt;
        own_numbers.insert(atom.number.values->begin(), atom.number.values->end());
      } else {
        if (atom.kind != Atom::Kind::kLanguage) return std::nullopt;
        const auto few = g_.languages.FewTexts(atom.language, kMaxProduct);
        if (!few) return std::nullopt;
        own_texts.insert(few->begin(), few->end());
      }
    }
    for (const std::string& text : own_texts) ++texts[text];
    for (const Decimal& number : own_numbers) ++numbers[number];
  }
  Atom atom;
  atom.kind = type == JsonType::kString ? Atom::Kind::kLanguage : Atom::Kind::kNumber;
  std::vector<std::u32string> once;
  atom.number.values.emplace();
  for (const auto& [text, count] : texts) {
    if (count == 1) once.push_back(ToUtf32(text));
  }
  for (const auto& [number, count] : numbers) {
    if (count == 1) atom.number.values->push_back(number);
  }
  if (once.empty() && atom.number.values->empty()) return Alternatives{};
  if (type == JsonType::kString) {
    atom.number.values.reset();
    atom.language = g_.languages.Literals(std::move(once));
  }
  return Alternatives{{AtomOf(std::move(atom))}};
}

Alternatives SchemaTypes::Product(const Alternatives& a, const Alternatives& b, JsonType type) {
  Alternatives out;
  if (a.size() * b.size() > kMaxProduct) {
    Refuse("allOf", "more than " + std::to_string(kMaxProduct) + " combinations of alternatives");
    return out;
  }
  const bool many = type == JsonType::kObject && a.size() * b.size() > kFewPairs;
  const std::vector<KeyMembers*> keys_a =
      many ? KeyMembersOfAll(a, type) : std::vector<KeyMembers*>(a.size());
  const std::vector<KeyMembers*> keys_b =
      many ? KeyMembersOfAll(b, type) : std::vector<KeyMembers*>(b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < b.size(); ++j) {
      if (many && AreApart(keys_a[i], keys_b[j])) continue;
      const Conjunction &x = a[i], &y = b[j];
      Conjunction both;
      std::set_union(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(both));
      if (many) {
        DropImplied(*keys_a[i], nullptr, &both);
        DropImplied(*keys_b[j], keys_a[i], &both);
      }
      if (x.empty() || y.empty() || MayHold(both, type)) out.push_back(std::move(both));
      if (failed_) return {};
    }
  }
  return out;
}

// `beside` with each part alone, excluding those other parts that can hold together with it.
Alternatives SchemaTypes::ExpandExactlyOne(const std::vector<ExprId>& parts, JsonType type,
                                           const Alternatives& beside) {
  std::vector<Alternatives> each, own;
  for (const ExprId part : parts) {
    each.push_back(Expand(part, type, false));
    if (failed_) return {};
    own.push_back(each.back().empty() ? Alternatives{} : Product(beside, each.back(), type));
  }
  if (beside == Alternatives{{}}) {
    if (auto constants = ExactlyOneConstant(each, type)) return *std::move(constants);
  }
  std::vector<std::vector<KeyMembers*>> own_keys, each_keys;
  std::vector<size_t> live;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!own[i].empty()) live.push_back(i);
    own_keys.push_back(KeyMembersOfAll(own[i], type));
    each_keys.push_back(KeyMembersOfAll(each[i], type));
  }
  Alternatives out;
  for (const size_t i : live) {
    for (const size_t j : live) {
      if (i == j || own[i].empty() || failed_) continue;
      if (type == JsonType::kObject && AreApart(own_keys[i], each_keys[j])) continue;
      if (Product(own[i], each[j], type).empty()) continue;
      own[i] = Product(own[i], Expand(parts[j], type, true), type);
      Simplify(&own[i]);
      if (own[i].empty()) break;
    }
    out.insert(out.end(), own[i].begin(), own[i].end());
    if (!InTime()) return {};
  }
  return out;
}

}  // namespace aisp
