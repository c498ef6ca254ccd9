// JsonGrammar: the result of compiling a JSON Schema. Every type is a list of alternatives
// (shapes). Each is a merged conjunction that can be completed from every state that the machine
// (json_machine.h) can reach in it, so the machine may follow all alternatives in parallel and
// never reaches a dead end.
//
// Built by CompileSchema and then unchanged, except for lazily built automata: the owner of a
// grammar serialises its callers.
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

// One way in which a value of `type` fulfils obligations (bits of `done`) of its container.
struct ValueWay {
  uint8_t done = 0;
  TypeId type = 0;
};

struct StringShape {
  Automaton* automaton = nullptr;
  int32_t min = 0, max = kNoLimit;  // code points
};

// A member name that the schema knows. Without ways it must not appear.
struct NameSlot {
  std::string text;
  bool required = false;
  std::vector<ValueWay> ways;
};

// All other names, by language.
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
  uint8_t obligations = 0;  // bits: each needs some member to fulfil it
  uint8_t endless = 0;      // those that infinitely many names can fulfil
  bool inhabited = false;

  bool HasName(std::string_view text) const;
};

inline constexpr size_t kMaxRules = 4;  // of an array; obligations of an object

// How many more members fulfil a set of obligations, each by one of its ways.
class Coverage {
 public:
  static constexpr int32_t kNever = INT32_MAX;

  Coverage() {
    least_.fill(kNever);
    least_[0] = 0;
  }
  // Adds `members` members with these ways; `extra`: they are not required.
  void Add(const std::vector<ValueWay>& ways, uint64_t members, bool extra);
  // The smallest number of extra members; kNever when impossible.
  int32_t LeastFor(uint8_t open) const;

 private:
  std::array<int32_t, 1u << kMaxRules> least_;  // by obligations fulfilled
};

struct ContainsRule {
  int32_t min = 0, max = kNoLimit;
};

struct ArrayShape {
  std::vector<std::vector<ValueWay>> prefix;  // the ways' bits: rules that the item counts for
  std::vector<ValueWay> rest;
  int32_t min = 0, max = kNoLimit;
  std::vector<ContainsRule> rules;
  bool unique = false;
  bool few = false;     // unique, and the items of some position may run out
  bool unsure = false;  // unique, and it is unknown whether enough different items exist
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

  // False when no value fits the schema.
  bool HasValues() const { return types[static_cast<size_t>(root)].inhabited; }
  Automaton* AutomatonOf(TermId language);
  // Whether an array with `index` items and these counts can still be completed.
  bool ArrayCanFinish(const ArrayShape& shape, size_t index, const RuleCounts& counts) const;
  // Removes names, ways and shapes that no value fits. Exact, by the least fixed point.
  void KeepInhabited();

 private:
  bool Inhabited(const std::vector<ValueWay>& ways) const;
  std::vector<ValueWay> InhabitedWays(const std::vector<ValueWay>& ways) const;
  bool Inhabited(const ObjectShape& shape) const;
  bool Inhabited(const ArrayShape& shape) const;
  void Drop(ObjectShape* shape);
  void Drop(ArrayShape* shape);
  void FindInhabited();
  // In json_grammar_unique.cc.
  bool IsEndless(TypeId type, std::vector<uint8_t>* marks);
  bool IsEndless(const ArrayShape& shape, std::vector<uint8_t>* marks);
  bool IsEndless(const ObjectShape& shape, std::vector<uint8_t>* marks);
  bool LimitUnique();
  bool LimitUnique(ArrayShape* shape, std::vector<uint8_t>* marks);
};

}  // namespace aisp
