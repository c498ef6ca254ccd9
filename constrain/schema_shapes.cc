// Merges conjunctions of atoms into shapes.
#include <algorithm>

#include "constrain/schema_types.h"

namespace aisp {
namespace {

constexpr size_t kMaxClasses = 64;
constexpr size_t kMaxCandidates = 32;  // names written out one by one
constexpr size_t kMaxWrittenOut = 1024;

}  // namespace

NumberSpec SchemaTypes::MergeNumbers(const Conjunction& all) const {
  NumberSpec out;
  for (const AtomId id : all) {
    const NumberSpec& n = AtomAt(id).number;
    out.integer = out.integer || n.integer;
    out.plain_integer = out.plain_integer || n.plain_integer;
    out.not_integer = out.not_integer || n.not_integer;
    out.pointed = out.pointed || n.pointed;
    if (n.low) out.LimitLow(*n.low, n.low_excluded);
    if (n.high) out.LimitHigh(*n.high, n.high_excluded);
    if (n.values) out.LimitValues(*n.values);
    out.multiples.insert(out.multiples.end(), n.multiples.begin(), n.multiples.end());
    out.not_multiples.insert(out.not_multiples.end(), n.not_multiples.begin(),
                             n.not_multiples.end());
    out.Exclude(n.excluded);
  }
  out.KeepMembers();
  return out;
}

// `exact`: for a shape; otherwise only whether some string may fit, without tables of lengths.
std::optional<StringShape> SchemaTypes::MergeStrings(const Conjunction& all, bool exact) {
  StringShape shape;
  std::vector<TermId> parts;
  for (const AtomId id : all) {
    const Atom& atom = AtomAt(id);
    if (atom.kind == Atom::Kind::kLanguage) parts.push_back(atom.language);
    if (atom.kind == Atom::Kind::kMinLength) shape.min = std::max(shape.min, atom.count);
    if (atom.kind == Atom::Kind::kMaxLength) {
      shape.max = shape.max == kNoLimit ? atom.count : std::min(shape.max, atom.count);
    }
  }
  if (shape.max != kNoLimit && shape.min > shape.max) return std::nullopt;
  shape.automaton = g_.AutomatonOf(g_.languages.Intersect(parts));
  if (shape.automaton->start() == Automaton::kDead) return std::nullopt;
  if (!exact || (shape.min == 0 && shape.max == kNoLimit)) return shape;
  if (!shape.automaton->PrepareLengths(shape.max)) {
    // Too many states for a table of lengths: the limits become a part of the language, whose
    // states are built lazily.
    parts.push_back(
        g_.languages.Length(shape.min, shape.max == kNoLimit ? Languages::kUnbounded : shape.max));
    shape = {g_.AutomatonOf(g_.languages.Intersect(parts)), 0, kNoLimit};
    return shape.automaton->start() == Automaton::kDead ? std::nullopt : std::optional(shape);
  }
  if (!shape.automaton->CanFinish(shape.automaton->start(), shape.min, shape.max))
    return std::nullopt;
  // Limits that the language implies would only make masks slower.
  if (shape.max != kNoLimit && shape.automaton->AllAtMost(shape.max)) shape.max = kNoLimit;
  if (shape.min > 0 && shape.automaton->AllAtLeast(shape.min)) shape.min = 0;
  return shape;
}

ExprId SchemaTypes::ItemAt(const Conjunction& all, size_t index) {
  std::vector<ExprId> parts;
  for (const AtomId id : all) {
    const Atom& atom = AtomAt(id);
    if (atom.kind != Atom::Kind::kItems) continue;
    parts.push_back(index < atom.prefix.size() ? atom.prefix[index] : atom.rest);
  }
  return e_.And(std::move(parts));
}

std::vector<ValueWay> SchemaTypes::ItemWays(ExprId item, size_t index,
                                            const std::vector<const Atom*>& rules) {
  std::vector<ValueWay> ways;
  for (unsigned done = 0; done < (1u << rules.size()); ++done) {
    std::vector<ExprId> parts = {item};
    bool possible = true;
    for (size_t r = 0; r < rules.size(); ++r) {
      const bool counts = (done >> r & 1) != 0;
      if (index < static_cast<size_t>(rules[r]->from)) {
        possible = possible && !counts;
      } else if (counts) {
        parts.push_back(rules[r]->rest);
      } else if (rules[r]->max != kNoLimit) {
        parts.push_back(e_.Not(rules[r]->rest));
      }
    }
    const ExprId value = e_.And(std::move(parts));
    if (possible && value != Exprs::kFalse)
      ways.push_back({static_cast<uint8_t>(done), TypeOf(value)});
  }
  return ways;
}

int32_t SchemaTypes::MergeArrays(const Conjunction& all) {
  const auto [it, fresh] = array_ids_.try_emplace(all, static_cast<int32_t>(g_.arrays.size()));
  if (!fresh) return it->second;
  const int32_t index = it->second;
  g_.arrays.emplace_back();
  ArrayShape shape;
  size_t prefix = 0;
  std::vector<Atom> held;
  for (const AtomId id : all) {
    const Atom& atom = AtomAt(id);
    switch (atom.kind) {
      case Atom::Kind::kItems:
        prefix = std::max(prefix, atom.prefix.size());
        break;
      case Atom::Kind::kMinItems:
        shape.min = std::max(shape.min, atom.count);
        break;
      case Atom::Kind::kMaxItems:
        shape.max = shape.max == kNoLimit ? atom.count : std::min(shape.max, atom.count);
        break;
      case Atom::Kind::kContains:
        prefix = std::max(prefix, static_cast<size_t>(atom.from));
        held.push_back(atom);
        shape.rules.push_back({atom.count, atom.max});
        break;
      default:
        shape.unique = true;
    }
  }
  if (held.size() > kMaxRules) {
    Refuse("contains", "more than 4 rules for one array");
    return index;
  }
  std::vector<const Atom*> rules;
  rules.reserve(held.size());
  for (const Atom& atom : held) rules.push_back(&atom);
  for (size_t i = 0; i < prefix; ++i) shape.prefix.push_back(ItemWays(ItemAt(all, i), i, rules));
  shape.rest = ItemWays(ItemAt(all, prefix), prefix, rules);
  shape.unique = shape.unique && (shape.max == kNoLimit || shape.max > 1);
  if (shape.unique) unique_at_[index] = at_;
  g_.arrays[static_cast<size_t>(index)] = std::move(shape);
  return index;
}

ExprId SchemaTypes::MemberNamed(const Conjunction& all, const std::string& name) {
  std::vector<ExprId> parts;
  for (const AtomId id : all) {
    const Atom& atom = AtomAt(id);
    if (atom.kind == Atom::Kind::kMemberNames && !g_.AutomatonOf(atom.language)->Matches(name)) {
      return Exprs::kFalse;
    }
    if (atom.kind != Atom::Kind::kProperties) continue;
    bool found = false;
    const auto own =
        std::lower_bound(atom.names.begin(), atom.names.end(), name,
                         [](const auto& n, const std::string& t) { return n.first < t; });
    if (own != atom.names.end() && own->first == name) {
      parts.push_back(own->second);
      found = true;
    }
    for (const auto& [pattern, value] : atom.patterns) {
      if (!g_.AutomatonOf(pattern)->Matches(name)) continue;
      parts.push_back(value);
      found = true;
    }
    if (!found) parts.push_back(atom.rest);
  }
  return e_.And(std::move(parts));
}

// A member's value for each subset of the obligations in `mask` that it may fulfil.
std::vector<ValueWay> SchemaTypes::MemberWays(ExprId value, uint8_t mask,
                                              const std::vector<const Atom*>& obligations) {
  std::vector<ValueWay> ways;
  for (unsigned done = 0; done < (1u << obligations.size()); ++done) {
    if ((done & ~mask) != 0) continue;
    std::vector<ExprId> parts = {value};
    for (size_t o = 0; o < obligations.size(); ++o) {
      if ((done >> o & 1) != 0) parts.push_back(obligations[o]->rest);
    }
    const ExprId both = e_.And(std::move(parts));
    if (both != Exprs::kFalse) ways.push_back({static_cast<uint8_t>(done), TypeOf(both)});
  }
  return ways;
}

// False when infinitely many names can be that member.
bool SchemaTypes::MemberCandidates(const Conjunction& all, const Atom& some,
                                   std::vector<std::string>* names) {
  Automaton* automaton = g_.AutomatonOf(some.language);
  if (automaton->start() == Automaton::kDead) return true;
  if (automaton->Analyse() && !automaton->IsInfinite(automaton->start()) &&
      automaton->Count(automaton->start()) <= kMaxCandidates) {
    *names = automaton->Texts(kMaxCandidates);
    return true;
  }
  for (const AtomId id : all) {
    const Atom& atom = AtomAt(id);
    if (atom.kind != Atom::Kind::kProperties || atom.rest != Exprs::kFalse ||
        !atom.patterns.empty())
      continue;
    for (const auto& [name, value] : atom.names) {
      if (automaton->Matches(name)) names->push_back(name);
    }
    return true;
  }
  return false;
}

Alternatives SchemaTypes::WriteOutMembers(const Alternatives& ways) {
  Alternatives done;
  Alternatives open = ways;
  while (!open.empty() && !failed_) {
    const Conjunction all = std::move(open.back());
    open.pop_back();
    bool written_out = false;
    for (size_t i = 0; i < all.size() && !written_out; ++i) {
      const Atom some = AtomAt(all[i]);
      std::vector<std::string> names;
      if (some.kind != Atom::Kind::kHasMember || !MemberCandidates(all, some, &names)) continue;
      written_out = true;
      Conjunction rest = all;
      rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(i));
      for (const std::string& name : names) {
        const ExprId member = e_.And({e_.Required(name), e_.Property(name, some.rest)});
        for (const Conjunction& way :
             Product({rest}, Expand(member, JsonType::kObject, false), JsonType::kObject)) {
          if (ObjectMayHold(way)) open.push_back(way);
        }
      }
    }
    if (!written_out) done.push_back(all);
    if (open.size() + done.size() > kMaxWrittenOut) {
      Refuse("not", "that some member must exist, in too many ways");
    }
  }
  Simplify(&done);
  return done;
}

int32_t SchemaTypes::MergeObjects(const Conjunction& all) {
  const auto [it, fresh] = object_ids_.try_emplace(all, static_cast<int32_t>(g_.objects.size()));
  if (!fresh) return it->second;
  const int32_t index = it->second;
  g_.objects.emplace_back();
  ObjectShape shape;
  std::set<std::string> names, required;
  std::vector<Atom> held;
  for (const AtomId id : all) {
    const Atom& atom = AtomAt(id);
    switch (atom.kind) {
      case Atom::Kind::kProperties:
        for (const auto& [name, value] : atom.names) names.insert(name);
        break;
      case Atom::Kind::kRequired:
        names.insert(atom.name);
        required.insert(atom.name);
        break;
      case Atom::Kind::kMinMembers:
        shape.min = std::max(shape.min, atom.count);
        break;
      case Atom::Kind::kMaxMembers:
        shape.max = shape.max == kNoLimit ? atom.count : std::min(shape.max, atom.count);
        break;
      case Atom::Kind::kHasMember:
        held.push_back(atom);
        break;
      default:
        break;
    }
  }
  if (held.size() > kMaxRules) {
    Refuse("not", "that some member must exist, more than 4 times");
    return index;
  }
  std::vector<const Atom*> obligations;
  obligations.reserve(held.size());
  for (const Atom& atom : held) obligations.push_back(&atom);
  shape.obligations = static_cast<uint8_t>((1u << held.size()) - 1);
  shape.required = static_cast<int32_t>(required.size());
  for (const std::string& name : names) {
    uint8_t mask = 0;
    for (size_t o = 0; o < held.size(); ++o) {
      if (g_.AutomatonOf(held[o].language)->Matches(name)) mask |= static_cast<uint8_t>(1u << o);
    }
    shape.names.push_back(
        {name, required.contains(name), MemberWays(MemberNamed(all, name), mask, obligations)});
  }
  if (!AddClasses(all, obligations, &shape)) return index;
  g_.objects[static_cast<size_t>(index)] = std::move(shape);
  return index;
}

bool SchemaTypes::CutNames(const Conjunction& all, const std::vector<const Atom*>& obligations,
                           std::vector<NamePart>* parts) {
  std::vector<TermId> limits;
  std::set<TermId> cuts;
  for (const AtomId id : all) {
    const Atom& atom = AtomAt(id);
    if (atom.kind == Atom::Kind::kMemberNames) limits.push_back(atom.language);
    for (const auto& [pattern, value] : atom.patterns) cuts.insert(pattern);
  }
  for (const Atom* obligation : obligations) cuts.insert(obligation->language);
  *parts = {{g_.languages.Intersect(limits), {}}};
  for (const TermId cut : cuts) {
    std::vector<NamePart> next;
    for (const NamePart& part : *parts) {
      NamePart inside{g_.languages.Intersect({part.language, cut}), part.in};
      NamePart outside{g_.languages.Intersect({part.language, g_.languages.Not(cut)}), part.in};
      inside.in.insert(cut);
      if (g_.AutomatonOf(inside.language)->start() != Automaton::kDead) next.push_back(inside);
      if (g_.AutomatonOf(outside.language)->start() != Automaton::kDead) next.push_back(outside);
    }
    *parts = std::move(next);
    if (parts->size() > kMaxClasses || !InTime()) {
      Refuse("patternProperties", "patterns that overlap in more than 64 ways");
      return false;
    }
  }
  return true;
}

// Unlisted names, in classes with equal consequences: each pattern splits every class in two.
bool SchemaTypes::AddClasses(const Conjunction& all, const std::vector<const Atom*>& obligations,
                             ObjectShape* shape) {
  std::vector<NamePart> parts;
  if (!CutNames(all, obligations, &parts)) return false;
  std::map<std::pair<ExprId, uint8_t>, std::vector<TermId>> merged;
  for (const NamePart& part : parts) {
    std::vector<ExprId> values;
    for (const AtomId id : all) {
      const Atom& atom = AtomAt(id);
      if (atom.kind != Atom::Kind::kProperties) continue;
      bool found = false;
      for (const auto& [pattern, value] : atom.patterns) {
        if (!part.in.contains(pattern)) continue;
        values.push_back(value);
        found = true;
      }
      if (!found) values.push_back(atom.rest);
    }
    uint8_t mask = 0;
    for (size_t o = 0; o < obligations.size(); ++o) {
      if (part.in.contains(obligations[o]->language)) mask |= static_cast<uint8_t>(1u << o);
    }
    const ExprId value = e_.And(std::move(values));
    if (value != Exprs::kFalse) merged[{value, mask}].push_back(part.language);
  }
  for (auto& [key, languages] : merged) {
    NameClass c;
    c.automaton = g_.AutomatonOf(g_.languages.Union(languages));
    if (c.automaton->start() == Automaton::kDead) continue;
    const bool known = !c.automaton->IsAnyText(c.automaton->start()) && c.automaton->Analyse();
    c.infinite = !known || c.automaton->IsInfinite(c.automaton->start());
    c.ways = MemberWays(key.first, key.second, obligations);
    shape->classes.push_back(std::move(c));
  }
  return true;
}

}  // namespace aisp
