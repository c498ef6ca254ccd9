#include "constrain/schema_types.h"

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

constexpr int kMaxLookDepth = 12;

constexpr JsonType kAllTypes[] = {JsonType::kNull,   JsonType::kBool,  JsonType::kNumber,
                                  JsonType::kString, JsonType::kArray, JsonType::kObject};

}  // namespace

SchemaTypes::SchemaTypes(JsonGrammar* grammar, Exprs* exprs, SchemaTranslator* translator,
                         const CompileLimits& limits)
    : g_(*grammar),
      e_(*exprs),
      translator_(*translator),
      limits_(limits),
      deadline_(limits.timeout),
      constants_(grammar, exprs, translator) {}

void SchemaTypes::Refuse(const std::string& keyword, const std::string& reason) {
  failed_ = true;
  translator_.Refuse(at_, keyword, reason);
  if (translator_.refusals().empty() && status_) {
    status_ = Unimplemented(keyword + " at '" + at_ + "': " + reason);
  }
}

bool SchemaTypes::InTime() {
  if (!status_) return false;
  if (deadline_.Passed() || g_.languages.TimedOut()) {
    status_ = Fail(Code::kDeadlineExceeded, "the schema did not compile within " +
                                                std::to_string(limits_.timeout.count()) +
                                                " ms (--grammar-compile-timeout)");
  } else if (g_.types.size() > limits_.max_types || g_.languages.Exhausted()) {
    status_ = ResourceExhausted("the schema needs more states than a grammar may have");
  }
  return status_.has_value();
}

bool SchemaTypes::Build(ExprId root) {
  g_.root = TypeOf(root);
  for (size_t i = 0; i < open_.size(); ++i) {
    BuildType(static_cast<TypeId>(i), open_[i]);
    if (!InTime() || failed_) return false;
  }
  g_.KeepInhabited();
  for (const auto& [id, pointer] : unique_at_) {
    const ArrayShape& shape = g_.arrays[static_cast<size_t>(id)];
    if (!shape.inhabited || !shape.unsure) continue;
    at_ = pointer;
    Refuse("uniqueItems", "whether there are enough different items cannot be told");
  }
  return InTime() && !failed_;
}

TypeId SchemaTypes::TypeOf(ExprId expr) {
  const auto [it, fresh] = type_ids_.try_emplace(expr, static_cast<TypeId>(g_.types.size()));
  if (fresh) {
    g_.types.emplace_back();
    open_.push_back(expr);
  }
  return it->second;
}

void SchemaTypes::BuildType(TypeId id, ExprId expr) {
  JsonTypeShapes type;
  passing_.clear();
  type.null = !Expand(expr, JsonType::kNull, false).empty();
  for (const Conjunction& all : Expand(expr, JsonType::kBool, false)) {
    uint8_t bools = 3;
    for (const AtomId atom : all) bools &= AtomAt(atom).bools;
    type.bools |= bools;
  }
  for (const Conjunction& all : Expand(expr, JsonType::kNumber, false)) {
    NumberSpec spec = MergeNumbers(all);
    if (!spec.NotEmpty()) continue;
    if (!spec.CanBeWritten()) Refuse("type", "no number of this set can be written");
    type.numbers.push_back(std::move(spec));
  }
  BuildStrings(Expand(expr, JsonType::kString, false), &type);
  const Alternatives arrays = Expand(expr, JsonType::kArray, false);
  for (const Conjunction& all : arrays) {
    if (!failed_) type.arrays.push_back(MergeArrays(all));
  }
  const Alternatives objects = WriteOutMembers(Expand(expr, JsonType::kObject, false));
  for (const Conjunction& all : objects) {
    if (!failed_) type.objects.push_back(MergeObjects(all));
  }
  g_.types[static_cast<size_t>(id)] = std::move(type);
}

// Alternatives without length limits are merged into one language.
void SchemaTypes::BuildStrings(const Alternatives& ways, JsonTypeShapes* type) {
  std::vector<TermId> plain;
  for (const Conjunction& all : ways) {
    std::vector<TermId> parts;
    bool limited = false;
    for (const AtomId id : all) {
      const Atom& atom = AtomAt(id);
      limited = limited || atom.kind != Atom::Kind::kLanguage;
      if (atom.kind == Atom::Kind::kLanguage) parts.push_back(atom.language);
    }
    if (!limited) {
      plain.push_back(g_.languages.Intersect(parts));
    } else if (auto shape = MergeStrings(all, true)) {
      type->strings.push_back(*shape);
    }
  }
  if (plain.empty()) return;
  Automaton* automaton = g_.AutomatonOf(g_.languages.Union(plain));
  if (automaton->start() != Automaton::kDead) type->strings.push_back({automaton, 0, kNoLimit});
}

const Alternatives& SchemaTypes::Expand(ExprId expr, JsonType type, bool negated) {
  static const Alternatives kNone;
  const auto key = std::make_tuple(expr, type, negated);
  const auto known = expanded_.find(key);
  if (known != expanded_.end()) return known->second;
  if (failed_ || !InTime()) return kNone;
  const auto [begun, fresh] = expanding_.try_emplace(key, depth_);
  if (!fresh && begun->second < depth_) {
    met_itself_ = true;  // through a value: MayHold answers yes
    return kNone;
  }
  if (!fresh || expanding_.size() > 2000) {
    Refuse("$ref", "the schema refers to itself without going into a value");
    return kNone;
  }
  const Exprs::Node node = e_.node(expr);
  Alternatives out;
  switch (node.op) {
    case Exprs::Op::kTrue:
    case Exprs::Op::kFalse:
      if ((node.op == Exprs::Op::kTrue) != negated) out.emplace_back();
      break;
    case Exprs::Op::kAtom:
      out = ExpandAtom(node.index, type, negated);
      break;
    case Exprs::Op::kReference: {
      inside_.push_back(node.index);
      at_ = translator_.PointerOf(node.index);
      const ExprId formula = translator_.Formula(node.index);
      out = Expand(formula, type, negated);
      inside_.pop_back();
      if (!inside_.empty() && !failed_) at_ = translator_.PointerOf(inside_.back());
      break;
    }
    case Exprs::Op::kNot:
      out = Expand(node.index, type, !negated);
      break;
    case Exprs::Op::kAnd:
      out = negated ? ExpandAny(node.parts, type, true) : ExpandAll(node.parts, type, false);
      break;
    case Exprs::Op::kOr:
      out = negated ? ExpandAll(node.parts, type, true) : ExpandAny(node.parts, type, false);
      break;
    case Exprs::Op::kExactlyOne:
      out = negated ? ExpandNotOne(node.parts, type) : ExpandExactlyOne(node.parts, type, {{}});
      break;
  }
  Simplify(&out);
  MergeMany(&out, type);
  expanding_.erase(key);
  if (out.size() > kMaxAlternatives && !failed_) {
    Refuse(node.op == Exprs::Op::kExactlyOne ? "oneOf" : "anyOf",
           "more than " + std::to_string(kMaxAlternatives) + " alternatives side by side");
  }
  if (met_itself_) return passing_.emplace_back(std::move(out));
  return expanded_[key] = std::move(out);
}

Alternatives SchemaTypes::ExpandAtom(AtomId id, JsonType type, bool negated) {
  const Atom& atom = AtomAt(id);
  if (atom.kind == Atom::Kind::kType) {
    const bool holds = (atom.types & Bit(type)) != 0;
    return holds != negated ? Alternatives{{}} : Alternatives{};
  }
  if (atom.AppliesTo() != type) return negated ? Alternatives{} : Alternatives{{}};
  if (!negated) return {{id}};
  if (atom.kind == Atom::Kind::kUnique) {
    Refuse("not", "the opposite of uniqueItems cannot be enforced");
    return {};
  }
  return Expand(e_.Opposite(id, &g_.languages), type, false);
}

Alternatives SchemaTypes::ExpandAll(const std::vector<ExprId>& parts, JsonType type, bool negated) {
  std::vector<Alternatives> all;
  std::vector<std::vector<ExprId>> one_ofs;
  for (const ExprId part : parts) {
    if (!negated && e_.node(part).op == Exprs::Op::kExactlyOne) {
      one_ofs.push_back(e_.node(part).parts);
      continue;
    }
    all.push_back(Expand(part, type, negated));
    if (all.back().empty() || failed_) return {};
  }
  // Few alternatives first, since they reduce the many.
  std::stable_sort(all.begin(), all.end(), [](const Alternatives& a, const Alternatives& b) {
    return a.size() < b.size();
  });
  // A conjunction without alternatives is examined once, not once per atom.
  Alternatives out = {{}};
  size_t at = 0;
  for (; at < all.size() && all[at].size() == 1; ++at)
    out[0].insert(out[0].end(), all[at][0].begin(), all[at][0].end());
  std::sort(out[0].begin(), out[0].end());
  out[0].erase(std::unique(out[0].begin(), out[0].end()), out[0].end());
  if (!MayHold(out[0], type)) return {};
  for (; at < all.size(); ++at) out = Product(out, all[at], type);
  // A oneOf's siblings often distinguish its parts: a required member for which each part names
  // another value.
  for (const std::vector<ExprId>& one_of : one_ofs) {
    if (out.empty() || failed_) return {};
    out = ExpandExactlyOne(one_of, type, out);
    Simplify(&out);
  }
  return out;
}

Alternatives SchemaTypes::ExpandAny(const std::vector<ExprId>& parts, JsonType type, bool negated) {
  Alternatives out;
  for (const ExprId part : parts) {
    const Alternatives& ways = Expand(part, type, negated);
    out.insert(out.end(), ways.begin(), ways.end());
    if (failed_ || !InTime()) return {};
  }
  return out;
}

// None of the parts, or two.
Alternatives SchemaTypes::ExpandNotOne(const std::vector<ExprId>& parts, JsonType type) {
  Alternatives out = ExpandAll(parts, type, true);
  for (size_t i = 0; i < parts.size(); ++i) {
    for (size_t j = i + 1; j < parts.size(); ++j) {
      const Alternatives both =
          Product(Expand(parts[i], type, false), Expand(parts[j], type, false), type);
      out.insert(out.end(), both.begin(), both.end());
      if (failed_ || !InTime()) return {};
    }
  }
  return out;
}

// Removes duplicates, and alternatives contained in others.
void SchemaTypes::Simplify(Alternatives* ways) {
  std::sort(ways->begin(), ways->end(), [](const Conjunction& a, const Conjunction& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  ways->erase(std::unique(ways->begin(), ways->end()), ways->end());
  if (ways->size() > 2 * kMaxAlternatives) return;
  Alternatives out;
  for (Conjunction& candidate : *ways) {
    const bool covered = std::any_of(out.begin(), out.end(), [&](const Conjunction& c) {
      return std::includes(candidate.begin(), candidate.end(), c.begin(), c.end());
    });
    if (!covered) out.push_back(std::move(candidate));
  }
  *ways = std::move(out);
}

bool SchemaTypes::MayHold(ExprId expr) {
  if (expr == Exprs::kTrue) return true;
  if (expr == Exprs::kFalse) return false;
  Answer& answer = may_hold_[expr];
  if (answer != Answer::kOpen) return answer == Answer::kYes;
  if (depth_ > kMaxLookDepth) return true;
  answer = Answer::kYes;  // in progress: a recursion answers yes
  ++depth_;
  bool holds = false;
  const bool met_before = std::exchange(met_itself_, false);
  for (const JsonType type : kAllTypes) {
    const Alternatives ways = Expand(expr, type, false);
    for (const Conjunction& all : ways) holds = holds || MayHold(all, type);
    if (holds) break;
  }
  --depth_;
  const bool met_itself = std::exchange(met_itself_, met_before);
  if (failed_) return true;
  if (met_itself) {
    may_hold_[expr] = Answer::kOpen;
    return true;
  }
  may_hold_[expr] = holds ? Answer::kYes : Answer::kNo;
  return holds;
}

bool SchemaTypes::MayHold(const Conjunction& all, JsonType type) {
  if (all.empty()) return true;
  if (type == JsonType::kNull) return true;
  const auto key = std::make_pair(type, all);
  const auto known = conjunction_may_hold_.find(key);
  if (known != conjunction_may_hold_.end()) return known->second;
  bool holds = true;
  switch (type) {
    case JsonType::kBool: {
      uint8_t bools = 3;
      for (const AtomId atom : all) bools &= AtomAt(atom).bools;
      holds = bools != 0;
      break;
    }
    case JsonType::kNumber:
      holds = MergeNumbers(all).NotEmpty();
      break;
    case JsonType::kString:
      holds = MergeStrings(all, false).has_value();
      break;
    case JsonType::kArray:
      holds = ArrayMayHold(all);
      break;
    default:
      holds = ObjectMayHold(all);
  }
  return conjunction_may_hold_[key] = holds;
}

bool SchemaTypes::ArrayMayHold(const Conjunction& all) {
  int32_t min = 0, max = INT32_MAX;
  for (const AtomId id : all) {
    const Atom& atom = AtomAt(id);
    if (atom.kind == Atom::Kind::kMinItems) min = std::max(min, atom.count);
    if (atom.kind == Atom::Kind::kContains) min = std::max(min, atom.from + atom.count);
    if (atom.kind == Atom::Kind::kMaxItems) max = std::min(max, atom.count);
  }
  if (min > max) return false;
  for (int32_t i = 0; i < std::min(min, 64); ++i) {
    if (!MayHold(ItemAt(all, static_cast<size_t>(i)))) return false;
  }
  return true;
}

bool SchemaTypes::ObjectMayHold(const Conjunction& all) {
  int32_t min = 0, max = INT32_MAX, required = 0;
  std::vector<std::string> names;
  for (const AtomId id : all) {
    const Atom& atom = AtomAt(id);
    if (atom.kind == Atom::Kind::kMinMembers) min = std::max(min, atom.count);
    if (atom.kind == Atom::Kind::kMaxMembers) max = std::min(max, atom.count);
    if (atom.kind == Atom::Kind::kHasMember) min = std::max(min, 1);
    if (atom.kind == Atom::Kind::kRequired) names.push_back(atom.name);
  }
  for (const std::string& name : names) {
    ++required;
    if (!MayHold(MemberNamed(all, name))) return false;
  }
  return std::max(min, required) <= max;
}

}  // namespace aisp
