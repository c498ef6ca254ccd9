// Schemas as formulas: boolean combinations of atoms and of references to other schemas. An atom
// limits values of one JSON type and holds for all others. References are resolved only on demand,
// so recursion is no problem. Negation is pushed to atoms, and every negated atom is again a
// combination of atoms: "not required a" is "a is absent", "not items: S" is "some item is not S"
// (Attouche et al., Witness generation for JSON Schema, VLDB 2022).
//
// Formulas are hash-consed: equal ones have equal ids. One thread at a time; lives as long as its
// compilation.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "constrain/language.h"
#include "constrain/number_spec.h"

namespace aisp {

using ExprId = int32_t;
using AtomId = int32_t;

enum class JsonType : uint8_t { kNull, kBool, kNumber, kString, kArray, kObject };
inline constexpr int kJsonTypes = 6;
constexpr uint8_t Bit(JsonType t) { return static_cast<uint8_t>(1u << static_cast<int>(t)); }

inline constexpr int32_t kNoLimit = -1;

struct Atom {
  enum class Kind : uint8_t {
    kType,       // the value is of one of `types`
    kBool,       // bits: 1 false, 2 true
    kNumber,     // `number`
    kLanguage,   // the string is in `language`
    kMinLength,  // `count` code points
    kMaxLength,
    kProperties,  // names, patterns, rest as properties, patternProperties, additionalProperties
    kRequired,    // `name` is a member
    kMinMembers,  // `count`
    kMaxMembers,
    kMemberNames,  // every name is in `language`
    kHasMember,    // some member's name is in `language` and its value fits `rest`
    kItems,        // prefix, rest
    kMinItems,
    kMaxItems,
    kContains,  // from index `from` on, between count and max items fit `rest`
    kUnique,
  };
  Kind kind = Kind::kType;
  uint8_t types = 0;
  uint8_t bools = 3;
  NumberSpec number;
  TermId language = 0;
  int32_t count = 0, max = kNoLimit, from = 0;
  std::string name;
  std::vector<std::pair<std::string, ExprId>> names;  // sorted
  std::vector<std::pair<TermId, ExprId>> patterns;
  std::vector<ExprId> prefix;
  ExprId rest = 0;

  JsonType AppliesTo() const;  // not for kType
};

class Exprs {
 public:
  enum class Op : uint8_t { kTrue, kFalse, kAtom, kReference, kNot, kAnd, kOr, kExactlyOne };
  static constexpr ExprId kTrue = 0, kFalse = 1;

  struct Node {
    Op op = Op::kTrue;
    int32_t index = 0;  // kAtom: atom; kReference: schema; kNot: expression
    std::vector<ExprId> parts;
  };

  Exprs();
  const Node& node(ExprId id) const { return nodes_[static_cast<size_t>(id)]; }
  const Atom& atom(AtomId id) const { return atoms_[static_cast<size_t>(id)]; }
  size_t size() const { return nodes_.size(); }

  ExprId And(std::vector<ExprId> parts);
  ExprId Or(std::vector<ExprId> parts);
  ExprId ExactlyOne(std::vector<ExprId> parts);
  ExprId Not(ExprId a);
  ExprId Reference(int32_t schema);
  ExprId MakeAtom(Atom atom);

  ExprId Type(uint8_t types);
  ExprId Absent(const std::string& name);
  ExprId Required(const std::string& name);
  ExprId Property(const std::string& name, ExprId value);
  ExprId Counted(Atom::Kind kind, int32_t count);
  ExprId Items(std::vector<ExprId> prefix, ExprId rest);
  ExprId Contains(ExprId item, int32_t from, int32_t min, int32_t max);

  // The complement, for values of the atom's type.
  ExprId Opposite(AtomId atom, Languages* languages);

 private:
  ExprId Intern(Op op, int32_t index, std::vector<ExprId> parts);
  ExprId Join(Op op, std::vector<ExprId> parts);
  ExprId OppositeOfNumber(const NumberSpec& number);
  ExprId OppositeOfProperties(const Atom& atom, Languages* languages);
  ExprId OppositeOfItems(const Atom& atom);

  std::vector<Node> nodes_;
  std::map<std::pair<std::pair<Op, int32_t>, std::vector<ExprId>>, ExprId> interned_;
  std::vector<Atom> atoms_;
  std::unordered_map<std::string, AtomId> atom_ids_;
};

}  // namespace aisp
