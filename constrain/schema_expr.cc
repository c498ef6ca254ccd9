#include "constrain/schema_expr.h"

#include <algorithm>

namespace aisp {
namespace {

void Put(std::string* key, int64_t value) {
  key->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void Put(std::string* key, const std::string& text) {
  Put(key, static_cast<int64_t>(text.size()));
  *key += text;
}
void Put(std::string* key, const Decimal& d) {
  key->append(reinterpret_cast<const char*>(&d.mantissa), sizeof(d.mantissa));
  Put(key, d.exponent);
}
void Put(std::string* key, const std::vector<Decimal>& values) {
  Put(key, static_cast<int64_t>(values.size()));
  for (const Decimal& v : values) Put(key, v);
}

void Put(std::string* key, const NumberSpec& n) {
  Put(key, n.integer + 2 * n.plain_integer + 4 * n.not_integer + 8 * n.low_excluded +
               16 * n.high_excluded + 32 * n.low.has_value() + 64 * n.high.has_value() +
               128 * n.values.has_value() + 256 * n.pointed);
  if (n.low) Put(key, *n.low);
  if (n.high) Put(key, *n.high);
  if (n.values) Put(key, *n.values);
  Put(key, n.multiples);
  Put(key, n.not_multiples);
  Put(key, n.excluded);
}

// A text that is equal for equal atoms.
std::string KeyOf(const Atom& a) {
  std::string key;
  for (const int64_t v :
       {static_cast<int64_t>(a.kind), static_cast<int64_t>(a.types), static_cast<int64_t>(a.bools),
        static_cast<int64_t>(a.language), static_cast<int64_t>(a.count),
        static_cast<int64_t>(a.max), static_cast<int64_t>(a.from), static_cast<int64_t>(a.rest)}) {
    Put(&key, v);
  }
  if (a.kind == Atom::Kind::kNumber) Put(&key, a.number);
  Put(&key, a.name);
  for (const auto& [name, value] : a.names) {
    Put(&key, name);
    Put(&key, value);
  }
  Put(&key, -1);
  for (const auto& [pattern, value] : a.patterns) {
    Put(&key, pattern);
    Put(&key, value);
  }
  Put(&key, -1);
  for (const ExprId item : a.prefix) Put(&key, item);
  return key;
}

}  // namespace

JsonType Atom::AppliesTo() const {
  switch (kind) {
    case Kind::kType:
    case Kind::kBool:
      return JsonType::kBool;
    case Kind::kNumber:
      return JsonType::kNumber;
    case Kind::kLanguage:
    case Kind::kMinLength:
    case Kind::kMaxLength:
      return JsonType::kString;
    case Kind::kItems:
    case Kind::kMinItems:
    case Kind::kMaxItems:
    case Kind::kContains:
    case Kind::kUnique:
      return JsonType::kArray;
    default:
      return JsonType::kObject;
  }
}

Exprs::Exprs() {
  nodes_.push_back({Op::kTrue, 0, {}});
  nodes_.push_back({Op::kFalse, 0, {}});
}

ExprId Exprs::Intern(Op op, int32_t index, std::vector<ExprId> parts) {
  auto key = std::make_pair(std::make_pair(op, index), std::move(parts));
  const auto it = interned_.find(key);
  if (it != interned_.end()) return it->second;
  const auto id = static_cast<ExprId>(nodes_.size());
  nodes_.push_back({op, index, key.second});
  interned_.emplace(std::move(key), id);
  return id;
}

ExprId Exprs::Join(Op op, std::vector<ExprId> parts) {
  const ExprId neutral = op == Op::kAnd ? kTrue : kFalse,
               absorbing = op == Op::kAnd ? kFalse : kTrue;
  std::vector<ExprId> flat;
  for (const ExprId part : parts) {
    if (part == absorbing) return absorbing;
    if (part == neutral) continue;
    if (node(part).op == op) {
      flat.insert(flat.end(), node(part).parts.begin(), node(part).parts.end());
    } else {
      flat.push_back(part);
    }
  }
  std::sort(flat.begin(), flat.end());
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  for (const ExprId part : flat) {
    if (node(part).op == Op::kNot &&
        std::binary_search(flat.begin(), flat.end(), node(part).index)) {
      return absorbing;
    }
  }
  if (flat.empty()) return neutral;
  if (flat.size() == 1) return flat[0];
  return Intern(op, 0, std::move(flat));
}

ExprId Exprs::And(std::vector<ExprId> parts) { return Join(Op::kAnd, std::move(parts)); }
ExprId Exprs::Or(std::vector<ExprId> parts) { return Join(Op::kOr, std::move(parts)); }

ExprId Exprs::ExactlyOne(std::vector<ExprId> parts) {
  std::erase(parts, kFalse);
  if (parts.empty()) return kFalse;
  if (parts.size() == 1) return parts[0];
  return Intern(Op::kExactlyOne, 0, std::move(parts));
}

ExprId Exprs::Not(ExprId a) {
  if (a == kTrue) return kFalse;
  if (a == kFalse) return kTrue;
  if (node(a).op == Op::kNot) return node(a).index;
  return Intern(Op::kNot, a, {});
}

ExprId Exprs::Reference(int32_t schema) { return Intern(Op::kReference, schema, {}); }

ExprId Exprs::MakeAtom(Atom atom) {
  const auto [it, fresh] = atom_ids_.try_emplace(KeyOf(atom), static_cast<AtomId>(atoms_.size()));
  if (fresh) atoms_.push_back(std::move(atom));
  return Intern(Op::kAtom, it->second, {});
}

ExprId Exprs::Type(uint8_t types) {
  if (types == (1u << kJsonTypes) - 1) return kTrue;
  if (types == 0) return kFalse;
  Atom atom;
  atom.types = types;
  return MakeAtom(std::move(atom));
}

ExprId Exprs::Absent(const std::string& name) { return Property(name, kFalse); }

ExprId Exprs::Required(const std::string& name) {
  Atom atom;
  atom.kind = Atom::Kind::kRequired;
  atom.name = name;
  return MakeAtom(std::move(atom));
}

ExprId Exprs::Property(const std::string& name, ExprId value) {
  Atom atom;
  atom.kind = Atom::Kind::kProperties;
  atom.names.emplace_back(name, value);
  atom.rest = kTrue;
  return MakeAtom(std::move(atom));
}

ExprId Exprs::Counted(Atom::Kind kind, int32_t count) {
  Atom atom;
  atom.kind = kind;
  atom.count = count;
  return MakeAtom(std::move(atom));
}

ExprId Exprs::Items(std::vector<ExprId> prefix, ExprId rest) {
  while (!prefix.empty() && prefix.back() == rest) prefix.pop_back();
  if (prefix.empty() && rest == kTrue) return kTrue;
  Atom atom;
  atom.kind = Atom::Kind::kItems;
  atom.prefix = std::move(prefix);
  atom.rest = rest;
  return MakeAtom(std::move(atom));
}

ExprId Exprs::Contains(ExprId item, int32_t from, int32_t min, int32_t max) {
  if (max != kNoLimit && max < min) return Not(Type(Bit(JsonType::kArray)));
  if (min <= 0 && max == kNoLimit) return kTrue;
  if (min <= 0 && max == 0) {
    return Items(std::vector<ExprId>(static_cast<size_t>(from), kTrue), Not(item));
  }
  Atom atom;
  atom.kind = Atom::Kind::kContains;
  atom.rest = item;
  atom.from = from;
  atom.count = std::max(min, 0);
  atom.max = max;
  return MakeAtom(std::move(atom));
}

ExprId Exprs::OppositeOfNumber(const NumberSpec& n) {
  std::vector<ExprId> ways;
  auto way = [&](auto&& set) {
    Atom atom;
    atom.kind = Atom::Kind::kNumber;
    set(&atom.number);
    ways.push_back(MakeAtom(std::move(atom)));
  };
  if (n.integer) way([](NumberSpec* s) { s->not_integer = true; });
  if (n.plain_integer) way([](NumberSpec* s) { s->pointed = true; });
  if (n.pointed) way([](NumberSpec* s) { s->integer = s->plain_integer = true; });
  if (n.not_integer) way([](NumberSpec* s) { s->integer = true; });
  if (n.low) way([&](NumberSpec* s) { s->LimitHigh(*n.low, !n.low_excluded); });
  if (n.high) way([&](NumberSpec* s) { s->LimitLow(*n.high, !n.high_excluded); });
  for (const Decimal& m : n.multiples) way([&](NumberSpec* s) { s->not_multiples.push_back(m); });
  for (const Decimal& m : n.not_multiples) way([&](NumberSpec* s) { s->multiples.push_back(m); });
  if (n.values) way([&](NumberSpec* s) { s->excluded = *n.values; });
  if (!n.excluded.empty()) way([&](NumberSpec* s) { s->values = n.excluded; });
  return Or(std::move(ways));
}

ExprId Exprs::OppositeOfProperties(const Atom& atom, Languages* languages) {
  std::vector<ExprId> ways;
  std::vector<TermId> others;
  for (const auto& [name, value] : atom.names) {
    ways.push_back(And({Required(name), Property(name, Not(value))}));
    others.push_back(languages->Not(languages->Literal(name)));
  }
  auto has = [&](TermId language, ExprId value) {
    if (value == kFalse) return;
    Atom some;
    some.kind = Atom::Kind::kHasMember;
    some.language = language;
    some.rest = value;
    ways.push_back(MakeAtom(std::move(some)));
  };
  for (const auto& [pattern, value] : atom.patterns) {
    has(pattern, Not(value));
    others.push_back(languages->Not(pattern));
  }
  if (atom.rest != kTrue) has(languages->Intersect(others), Not(atom.rest));
  return Or(std::move(ways));
}

ExprId Exprs::OppositeOfItems(const Atom& atom) {
  std::vector<ExprId> ways;
  for (size_t i = 0; i < atom.prefix.size(); ++i) {
    std::vector<ExprId> prefix(i, kTrue);
    prefix.push_back(Not(atom.prefix[i]));
    ways.push_back(And({Counted(Atom::Kind::kMinItems, static_cast<int32_t>(i) + 1),
                        Items(std::move(prefix), kTrue)}));
  }
  ways.push_back(
      atom.rest == kTrue
          ? kFalse
          : Contains(Not(atom.rest), static_cast<int32_t>(atom.prefix.size()), 1, kNoLimit));
  return Or(std::move(ways));
}

ExprId Exprs::Opposite(AtomId id, Languages* languages) {
  const Atom atom = atoms_[static_cast<size_t>(id)];
  const auto at_most = [&](Atom::Kind kind) {
    return atom.count <= 0 ? kFalse : Counted(kind, atom.count - 1);
  };
  Atom out = atom;
  switch (atom.kind) {
    case Atom::Kind::kType:
      return Type(static_cast<uint8_t>(~atom.types & ((1u << kJsonTypes) - 1)));
    case Atom::Kind::kBool:
      out.bools = static_cast<uint8_t>(3 & ~atom.bools);
      return out.bools == 0 ? kFalse : MakeAtom(std::move(out));
    case Atom::Kind::kNumber:
      return OppositeOfNumber(atom.number);
    case Atom::Kind::kLanguage:
      out.language = languages->Not(atom.language);
      return MakeAtom(std::move(out));
    case Atom::Kind::kMinLength:
      return at_most(Atom::Kind::kMaxLength);
    case Atom::Kind::kMaxLength:
      return Counted(Atom::Kind::kMinLength, atom.count + 1);
    case Atom::Kind::kProperties:
      return OppositeOfProperties(atom, languages);
    case Atom::Kind::kRequired:
      return Absent(atom.name);
    case Atom::Kind::kMinMembers:
      return at_most(Atom::Kind::kMaxMembers);
    case Atom::Kind::kMaxMembers:
      return Counted(Atom::Kind::kMinMembers, atom.count + 1);
    case Atom::Kind::kMemberNames:
      out.kind = Atom::Kind::kHasMember;
      out.language = languages->Not(atom.language);
      out.rest = kTrue;
      return MakeAtom(std::move(out));
    case Atom::Kind::kHasMember:
      out.kind = Atom::Kind::kProperties;
      out.patterns = {{atom.language, Not(atom.rest)}};
      out.language = 0;
      out.rest = kTrue;
      return MakeAtom(std::move(out));
    case Atom::Kind::kItems:
      return OppositeOfItems(atom);
    case Atom::Kind::kMinItems:
      return at_most(Atom::Kind::kMaxItems);
    case Atom::Kind::kMaxItems:
      return Counted(Atom::Kind::kMinItems, atom.count + 1);
    case Atom::Kind::kContains:
      return Or(
          {atom.count > 0 ? Contains(atom.rest, atom.from, 0, atom.count - 1) : kFalse,
           atom.max != kNoLimit ? Contains(atom.rest, atom.from, atom.max + 1, kNoLimit) : kFalse});
    case Atom::Kind::kUnique:
      return kFalse;  // unreachable: refused by the translator
  }
  return kFalse;
}

}  // namespace aisp
