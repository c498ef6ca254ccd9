// JsonGrammar: what a JSON Schema compiles to. Every type is a list of alternatives (shapes), each
// of which is a conjunction that was merged and can be completed from every state that the machine
// (json_machine.h) lets it reach; so the machine may follow all alternatives side by side and never
// comes to a dead end.
//
// Built by CompileSchema, then unchanged but for automata, which grow as they are walked: callers
// of one grammar are serialised by whoever owns it.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/automaton.h"
#include "constrain/number_spec.h"
#include "constrain/schema_expr.h"

namespace aisp {

using TypeId = int32_t;

// One way in which a value fulfils obligations of its container: `done` (bits) with a value of
// `type`.
struct ValueWay {
  uint8_t done = 0;
  TypeId type = 0;
};

struct StringShape {
  Automaton* automaton = nullptr;
  int32_t min = 0, max = kNoLimit;  // code points
};

// A member's name that the schema knows. Without ways: it must not appear.
struct NameSlot {
  std::string text;
  bool required = false;
  std::vector<ValueWay> ways;
};

// All other names of one language.
struct NameClass {
  Automaton* automaton = nullptr;
  bool infinite = true;
  std::vector<ValueWay> ways;
};

struct ObjectShape {
  std::vector<NameSlot> names;  // sorted by text
  std::vector<NameClass> classes;
  int32_t min = 0, max = kNoLimit;  // members
  int32_t required = 0;
  uint8_t obligations = 0;  // bits: some member has to fulfil each
  uint8_t endless = 0;      // those of them that names without end can fulfil
  bool inhabited = false;

  bool HasName(std::string_view text) const;
};

inline constexpr size_t kMaxRules = 4;  // of an array, and obligations of an object

// How many further members fulfil a set of obligations together, each by one of its ways.
class Coverage {
 public:
  static constexpr int32_t kNever = INT32_MAX;

  Coverage() {
    least_.fill(kNever);
    least_[0] = 0;
  }
  // So many members may have these ways; `extra`: of those that need not come.
  void Add(const std::vector<ValueWay>& ways, uint64_t members, bool extra);
  // The least number of extra members; kNever when they cannot.
  int32_t LeastFor(uint8_t open) const;

 private:
  std::array<int32_t, 1u << kMaxRules> least_;  // by obligations fulfilled
};

struct ContainsRule {
  int32_t min = 0, max = kNoLimit;
};

struct ArrayShape {
  std::vector<std::vector<ValueWay>> prefix;  // ways' bits: which rules the item counts for
  std::vector<ValueWay> rest;
  int32_t min = 0, max = kNoLimit;
  std::vector<ContainsRule> rules;
  bool unique = false;
  bool few = false;     // unique, and items of some place may run out
  bool unsure = false;  // unique, and whether enough different items exist cannot be told
  bool inhabited = false;

  const std::vector<ValueWay>& At(size_t index) const {
    return index < prefix.size() ? prefix[index] : rest;
  }
};

using RuleCounts = std::array<uint16_t, kMaxRules>;

struct JsonTypeShapes {
  bool inhabited = false;
  bool null = false;
  uint8_t bools = 0;
  std::vector<NumberSpec> numbers;
  std::vector<StringShape> strings;
  std::vector<int32_t> arrays;   // indices into JsonGrammar::arrays
  std::vector<int32_t> objects;  // indices into JsonGrammar::objects
};

struct JsonGrammar {
  Languages languages;
  std::map<TermId, std::unique_ptr<Automaton>> automata;
  std::vector<JsonTypeShapes> types;
  std::deque<ObjectShape> objects;
  std::deque<ArrayShape> arrays;
  TypeId root = 0;

  // False when no value fits the schema at all: a text could never end.
  bool HasValues() const { return types[static_cast<size_t>(root)].inhabited; }
  Automaton* AutomatonOf(TermId language);
  // Whether an array that has `index` items and these counts can still be completed.
  bool ArrayCanFinish(const ArrayShape& shape, size_t index, const RuleCounts& counts) const;
  // Drops what no value fits: names, ways, shapes. Exact, by the least fixed point.
  void KeepInhabited();

 private:
  bool Inhabited(const std::vector<ValueWay>& ways) const;
  std::vector<ValueWay> InhabitedWays(const std::vector<ValueWay>& ways) const;
  bool Inhabited(const ObjectShape& shape) const;
  bool Inhabited(const ArrayShape& shape) const;
  void Drop(ObjectShape* shape);
  void Drop(ArrayShape* shape);
  void FindInhabited();
  // json_grammar_unique.cc
  bool IsEndless(TypeId type, std::vector<uint8_t>* marks);
  bool IsEndless(const ArrayShape& shape, std::vector<uint8_t>* marks);
  bool IsEndless(const ObjectShape& shape, std::vector<uint8_t>* marks);
  bool LimitUnique();
  bool LimitUnique(ArrayShape* shape, std::vector<uint8_t>* marks);
};

}  // namespace aisp
