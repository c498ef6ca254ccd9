#include "constrain/schema_strings.h"

namespace aisp {
namespace {

constexpr int kMaxDepth = 64;
constexpr int32_t kMaxCounted = 100'000;

class Strings {
 public:
  Strings(Exprs* exprs, Languages* languages, const std::function<ExprId(int32_t)>& formula)
      : e_(*exprs), l_(*languages), formula_(formula) {}

  Result<TermId> Of(ExprId expr, int depth) {
    if (depth > kMaxDepth) return Unimplemented("a schema that refers to itself in place");
    const Exprs::Node node = e_.node(expr);
    std::vector<TermId> parts;
    for (const ExprId part : node.parts) {
      AISP_ASSIGN_OR_RETURN(const TermId language, Of(part, depth + 1));
      parts.push_back(language);
    }
    switch (node.op) {
      case Exprs::Op::kTrue:
        return Languages::kAnyText;
      case Exprs::Op::kFalse:
        return Languages::kNothing;
      case Exprs::Op::kAtom:
        return OfAtom(e_.atom(node.index));
      case Exprs::Op::kReference:
        return Of(formula_(node.index), depth + 1);
      case Exprs::Op::kNot: {
        AISP_ASSIGN_OR_RETURN(const TermId language, Of(node.index, depth + 1));
        return l_.Not(language);
      }
      case Exprs::Op::kAnd:
        return l_.Intersect(parts);
      case Exprs::Op::kOr:
        return l_.Union(parts);
      case Exprs::Op::kExactlyOne:
        return ExactlyOne(parts);
    }
    return Languages::kNothing;
  }

 private:
  Result<TermId> OfAtom(const Atom& atom) {
    switch (atom.kind) {
      case Atom::Kind::kType:
        return (atom.types & Bit(JsonType::kString)) != 0 ? Languages::kAnyText
                                                          : Languages::kNothing;
      case Atom::Kind::kLanguage:
        return atom.language;
      case Atom::Kind::kMinLength:
      case Atom::Kind::kMaxLength:
        if (atom.count > kMaxCounted)
          return Unimplemented("a length of more than 100000 in a name");
        return atom.kind == Atom::Kind::kMinLength ? l_.Length(atom.count, Languages::kUnbounded)
                                                   : l_.Length(0, atom.count);
      default:
        return Languages::kAnyText;
    }
  }

  TermId ExactlyOne(const std::vector<TermId>& parts) {
    std::vector<TermId> ways;
    for (size_t i = 0; i < parts.size(); ++i) {
      std::vector<TermId> all = {parts[i]};
      for (size_t j = 0; j < parts.size(); ++j) {
        if (j != i) all.push_back(l_.Not(parts[j]));
      }
      ways.push_back(l_.Intersect(all));
    }
    return l_.Union(ways);
  }

  Exprs& e_;
  Languages& l_;
  const std::function<ExprId(int32_t)>& formula_;
};

}  // namespace

Result<TermId> StringsOf(ExprId expr, Exprs* exprs, Languages* languages,
                         const std::function<ExprId(int32_t)>& formula) {
  return Strings(exprs, languages, formula).Of(expr, 0);
}

}  // namespace aisp
