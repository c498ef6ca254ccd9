#include "constrain/schema_constants.h"

#include <algorithm>

namespace aisp {
namespace {

constexpr int kMaxDepth = 24;

using Fit = SchemaConstants::Fit;

Fit Opposite(Fit fit) { return fit == Fit::kMaybe ? fit : fit == Fit::kYes ? Fit::kNo : Fit::kYes; }

}  // namespace

int32_t SchemaConstants::Intern(Constant constant) {
  std::string key = std::to_string(static_cast<int>(constant.type)) + constant.text;
  if (constant.type == JsonType::kNumber) key += constant.number.ToString();
  if (constant.boolean) key += '+';
  const auto [it, fresh] = ids_.try_emplace(key, static_cast<int32_t>(constants_.size()));
  if (fresh) constants_.push_back(std::move(constant));
  return it->second;
}

const SchemaConstants::Ids* SchemaConstants::Of(ExprId expr) {
  auto known = known_.find(expr);
  if (known == known_.end()) {
    std::optional<Ids> ids = Candidates(expr, 0);
    if (ids) {
      std::sort(ids->begin(), ids->end());
      ids->erase(std::unique(ids->begin(), ids->end()), ids->end());
      std::erase_if(*ids, [&](int32_t id) { return Fits(expr, id) == Fit::kNo; });
    }
    known = known_.emplace(expr, std::move(ids)).first;
  }
  return known->second ? &*known->second : nullptr;
}

// All constants that fit, perhaps more.
std::optional<SchemaConstants::Ids> SchemaConstants::Candidates(ExprId expr, int depth) {
  if (depth > kMaxDepth) return std::nullopt;
  const Exprs::Node node = e_.node(expr);
  switch (node.op) {
    case Exprs::Op::kFalse:
      return Ids{};
    case Exprs::Op::kReference:
      return Candidates(translator_.Formula(node.index), depth + 1);
    case Exprs::Op::kOr:
    case Exprs::Op::kExactlyOne:
      return OfAll(node.parts, depth);
    case Exprs::Op::kAnd:
      for (const ExprId part : node.parts) {
        if (auto ids = Candidates(part, depth + 1)) return ids;
      }
      return OfAtoms(node.parts);
    case Exprs::Op::kAtom:
      return OfAtoms({expr});
    default:
      return std::nullopt;
  }
}

std::optional<SchemaConstants::Ids> SchemaConstants::OfAll(const std::vector<ExprId>& parts,
                                                           int depth) {
  Ids all;
  for (const ExprId part : parts) {
    const auto own = Candidates(part, depth + 1);
    if (!own || all.size() + own->size() > kMaxFew) return std::nullopt;
    all.insert(all.end(), own->begin(), own->end());
  }
  return all;
}

// For a conjunction of a type and a list of its values.
std::optional<SchemaConstants::Ids> SchemaConstants::OfAtoms(const std::vector<ExprId>& parts) {
  uint8_t types = 0xFF;
  for (const ExprId part : parts) {
    if (e_.node(part).op != Exprs::Op::kAtom) continue;
    const Atom& atom = e_.atom(e_.node(part).index);
    if (atom.kind == Atom::Kind::kType) types &= atom.types;
  }
  if (types == Bit(JsonType::kNull)) return Ids{Intern({})};
  if (types == Bit(JsonType::kBool)) {
    return Ids{Intern({JsonType::kBool, {}, {}, false}), Intern({JsonType::kBool, {}, {}, true})};
  }
  for (const ExprId part : parts) {
    if (e_.node(part).op != Exprs::Op::kAtom) continue;
    const Atom atom = e_.atom(e_.node(part).index);
    Ids ids;
    if (types == Bit(JsonType::kString) && atom.kind == Atom::Kind::kLanguage) {
      const auto texts = g_.languages.FewTexts(atom.language, kMaxFew);
      if (!texts) continue;
      for (const std::string& text : *texts) ids.push_back(Intern({JsonType::kString, text, {}}));
      return ids;
    }
    if (types == Bit(JsonType::kNumber) && atom.kind == Atom::Kind::kNumber && atom.number.values &&
        atom.number.values->size() <= kMaxFew) {
      for (const Decimal& d : *atom.number.values)
        ids.push_back(Intern({JsonType::kNumber, {}, d}));
      return ids;
    }
  }
  return std::nullopt;
}

Fit SchemaConstants::FitsBelow(ExprId expr, int32_t constant, int depth) {
  if (depth > kMaxDepth) return Fit::kMaybe;
  const Exprs::Node& node = e_.node(expr);
  const bool all = node.op == Exprs::Op::kAnd;
  int yes = 0, maybe = 0;
  switch (node.op) {
    case Exprs::Op::kTrue:
      return Fit::kYes;
    case Exprs::Op::kFalse:
      return Fit::kNo;
    case Exprs::Op::kAtom:
      return FitsAtom(e_.atom(node.index), constants_[static_cast<size_t>(constant)]);
    case Exprs::Op::kReference:
      return FitsBelow(translator_.Formula(node.index), constant, depth + 1);
    case Exprs::Op::kNot:
      return Opposite(FitsBelow(node.index, constant, depth + 1));
    default:
      break;
  }
  const std::vector<ExprId> parts = node.parts;
  const bool one = node.op == Exprs::Op::kExactlyOne;
  for (const ExprId part : parts) {
    const Fit fit = FitsBelow(part, constant, depth + 1);
    if (all ? fit == Fit::kNo : !one && fit == Fit::kYes) return fit;
    yes += fit == Fit::kYes;
    maybe += fit == Fit::kMaybe;
  }
  if (one && yes > 1) return Fit::kNo;
  if (maybe > 0) return Fit::kMaybe;
  return all || yes > 0 ? Fit::kYes : Fit::kNo;
}

Fit SchemaConstants::FitsAtom(const Atom& atom, const Constant& constant) {
  const auto told = [](bool holds) { return holds ? Fit::kYes : Fit::kNo; };
  if (atom.kind == Atom::Kind::kType) return told((atom.types & Bit(constant.type)) != 0);
  if (atom.AppliesTo() != constant.type) return Fit::kYes;
  const auto points = std::count_if(constant.text.begin(), constant.text.end(), [](char c) {
    return (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  });
  switch (atom.kind) {
    case Atom::Kind::kBool:
      return told((atom.bools & (constant.boolean ? 2 : 1)) != 0);
    case Atom::Kind::kNumber:
      // There the spelling matters too.
      if (atom.number.pointed || atom.number.plain_integer) return Fit::kMaybe;
      return told(atom.number.Contains(constant.number));
    case Atom::Kind::kLanguage:
      return told(g_.AutomatonOf(atom.language)->Matches(constant.text));
    case Atom::Kind::kMinLength:
      return told(points >= atom.count);
    case Atom::Kind::kMaxLength:
      return told(points <= atom.count);
    default:
      return Fit::kMaybe;
  }
}

}  // namespace aisp
