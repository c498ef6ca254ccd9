// The implementation of CompileSchema: formulas to types. For constrain/ only; one compilation, one
// thread.
#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "constrain/json_grammar.h"
#include "constrain/schema_compiler.h"
#include "constrain/schema_constants.h"
#include "constrain/schema_translator.h"

namespace aisp {

// A conjunction of atoms of one JSON type; sorted.
using Conjunction = std::vector<AtomId>;
using Alternatives = std::vector<Conjunction>;

class SchemaTypes {
 public:
  static constexpr size_t kMaxAlternatives = 1024;
  SchemaTypes(JsonGrammar* grammar, Exprs* exprs, SchemaTranslator* translator,
              const CompileLimits& limits);

  // Builds the type of `root` and all it needs. False: refused (see the translator) or out of
  // bounds (status()).
  bool Build(ExprId root);
  const Status& status() const { return status_; }

 private:
  enum class Answer : uint8_t { kOpen, kNo, kYes };

  TypeId TypeOf(ExprId expr);
  void BuildType(TypeId id, ExprId expr);
  void BuildStrings(const Alternatives& ways, JsonTypeShapes* type);
  // The conjunctions of `expr` (or its complement) for values of `type`.
  const Alternatives& Expand(ExprId expr, JsonType type, bool negated);
  Alternatives ExpandAtom(AtomId atom, JsonType type, bool negated);
  Alternatives ExpandAll(const std::vector<ExprId>& parts, JsonType type, bool negated);
  Alternatives ExpandAny(const std::vector<ExprId>& parts, JsonType type, bool negated);
  Alternatives ExpandExactlyOne(const std::vector<ExprId>& parts, JsonType type,
                                const Alternatives& beside);
  Alternatives ExpandNotOne(const std::vector<ExprId>& parts, JsonType type);
  Alternatives Product(const Alternatives& a, const Alternatives& b, JsonType type);
  // Required members with few values in an alternative of objects. They distinguish it from others
  // without computing both together.
  struct KeyMembers {
    const Conjunction* all;  // lives as long as this object
    std::vector<std::pair<std::string, const SchemaConstants::Ids*>> required;
    std::map<std::string, ExprId> members;  // by name, computed on demand
  };
  KeyMembers& KeyMembersOf(const Conjunction& all);
  bool NeedsValueOf(const KeyMembers& one, KeyMembers* other);
  // Whether no object fits both.
  bool AreApart(KeyMembers* a, KeyMembers* b) { return NeedsValueOf(*a, b) || NeedsValueOf(*b, a); }
  // Removes from `both` what the few values in `found` imply, except for members that `done` also
  // has.
  void DropImplied(const KeyMembers& found, const KeyMembers* done, Conjunction* both);
  bool AreApart(const std::vector<KeyMembers*>& a, const std::vector<KeyMembers*>& b);
  std::vector<KeyMembers*> KeyMembersOfAll(const Alternatives& ways, JsonType type);
  // For parts that are lists of constants: what is in exactly one of them. nullopt for others.
  std::optional<Alternatives> ExactlyOneConstant(const std::vector<Alternatives>& parts,
                                                 JsonType type);
  // Merges many languages, or many lists of numbers, into one.
  void MergeMany(Alternatives* ways, JsonType type);
  AtomId AtomOf(Atom atom);
  void Simplify(Alternatives* ways);

  // False only if no value fits: a cheap check, in which recursion answers yes.
  bool MayHold(ExprId expr);
  bool MayHold(const Conjunction& all, JsonType type);
  bool ArrayMayHold(const Conjunction& all);
  bool ObjectMayHold(const Conjunction& all);

  NumberSpec MergeNumbers(const Conjunction& all) const;
  std::optional<StringShape> MergeStrings(const Conjunction& all, bool exact);
  int32_t MergeArrays(const Conjunction& all);
  std::vector<ValueWay> ItemWays(ExprId item, size_t index, const std::vector<const Atom*>& rules);
  ExprId ItemAt(const Conjunction& all, size_t index);
  int32_t MergeObjects(const Conjunction& all);
  // "Some member ..." if only certain names can be that member: one alternative per name.
  Alternatives WriteOutMembers(const Alternatives& ways);
  bool MemberCandidates(const Conjunction& all, const Atom& some, std::vector<std::string>* names);
  ExprId MemberNamed(const Conjunction& all, const std::string& name);
  struct NamePart {
    TermId language;
    std::set<TermId> in;  // the cuts that contain it
  };
  bool CutNames(const Conjunction& all, const std::vector<const Atom*>& obligations,
                std::vector<NamePart>* parts);
  bool AddClasses(const Conjunction& all, const std::vector<const Atom*>& obligations,
                  ObjectShape* shape);
  std::vector<ValueWay> MemberWays(ExprId value, uint8_t mask,
                                   const std::vector<const Atom*>& obligations);
  const Atom& AtomAt(AtomId id) const { return e_.atom(id); }

  void Refuse(const std::string& keyword, const std::string& reason);
  bool InTime();

  JsonGrammar& g_;
  Exprs& e_;
  SchemaTranslator& translator_;
  CompileLimits limits_;
  Deadline deadline_;
  Status status_;
  bool failed_ = false;
  SchemaConstants constants_;
  std::map<Conjunction, KeyMembers> key_members_;
  std::unordered_map<ExprId, TypeId> type_ids_;
  std::vector<ExprId> open_;
  std::map<std::tuple<ExprId, JsonType, bool>, Alternatives> expanded_;
  std::map<std::tuple<ExprId, JsonType, bool>, int> expanding_;  // and the depth in MayHold
  std::deque<Alternatives> passing_;  // expansions that met one in progress: not cached
  bool met_itself_ = false;
  std::vector<int32_t> inside_;  // schemas being expanded
  std::string at_;               // JSON pointer of the last one, for refusals
  std::unordered_map<ExprId, Answer> may_hold_;
  std::map<std::pair<JsonType, Conjunction>, bool> conjunction_may_hold_;
  std::map<Conjunction, int32_t> array_ids_, object_ids_;
  std::map<int32_t, std::string> unique_at_;  // arrays of unique items: JSON pointers
  int depth_ = 0;
};

}  // namespace aisp
