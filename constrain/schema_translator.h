// SchemaTranslator: translates the keywords of a JSON Schema to formulas (schema_expr.h). A schema
// is translated when a reference to it is first resolved. What cannot be enforced is recorded as a
// refusal with keyword and JSON pointer. One thread at a time; lives as long as its compilation.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "constrain/schema_document.h"
#include "constrain/schema_expr.h"

namespace aisp {

struct Refusal {
  std::string keyword;
  std::string pointer;  // of the schema with the keyword
  std::string reason;
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

struct SchemaOptions {
  bool assert_formats = true;        // false: `format` is only an annotation
  std::vector<std::string> relaxed;  // keywords to ignore where they cannot be enforced
};

class SchemaTranslator {
 public:
  SchemaTranslator(SchemaDocument* document, Exprs* exprs, Languages* languages,
                   SchemaOptions options);

  ExprId Root() { return Reference(document_.root()); }
  // The formula of schema `index` (Exprs::Node::index of a kReference).
  ExprId Formula(int32_t index);
  size_t schemas() const { return schemas_.size(); }
  const std::string& PointerOf(int32_t index) const;
  const std::vector<Refusal>& refusals() const { return refusals_; }
  void Refuse(const std::string& pointer, const std::string& keyword, const std::string& reason);

 private:
  struct Schema {
    const SchemaPlace* place = nullptr;
    ExprId formula = -1;
    int32_t scope = 0;
  };
  // Members and items that a subschema evaluates under a condition (for unevaluated*).
  struct Evaluated {
    ExprId condition = Exprs::kTrue;
    bool all_members = false, all_items = false;
    std::set<std::string> names;
    std::set<TermId> patterns;
    int32_t items = 0;
    std::vector<ExprId> matched;  // items that fit one of these
  };
  using Cases = std::vector<Evaluated>;

  ExprId Reference(const SchemaPlace& place);
  ExprId Sub(const SchemaPlace& parent, const Json& json, const std::string& path);
  ExprId Translate(const SchemaPlace& place);
  ExprId Refer(const SchemaPlace& place, const char* keyword);
  const SchemaPlace* Target(const SchemaPlace& place, const char* keyword);
  ExprId Applicators(const SchemaPlace& place);
  ExprId Join(const SchemaPlace& place, const char* keyword);
  ExprId Condition(const SchemaPlace& place);
  ExprId TypeKeyword(const SchemaPlace& place);
  ExprId Values(const SchemaPlace& place);
  ExprId Constant(const SchemaPlace& place, const char* keyword, const Json& value);
  ExprId NumberLimits(const SchemaPlace& place);
  ExprId Strings(const SchemaPlace& place);
  ExprId Arrays(const SchemaPlace& place);
  ExprId ItemSchemas(const SchemaPlace& place);
  ExprId Objects(const SchemaPlace& place);
  ExprId Properties(const SchemaPlace& place);
  ExprId Dependencies(const SchemaPlace& place);
  ExprId MemberNames(const SchemaPlace& place);
  ExprId Unevaluated(const SchemaPlace& place);
  bool CasesOf(const SchemaPlace& place, bool inner, int depth, Cases* out);
  bool CasesOfApplicators(const SchemaPlace& place, int depth, Cases* out);
  bool CasesOfCondition(const SchemaPlace& place, int depth, Cases* out);
  bool AddCases(const SchemaPlace& place, ExprId condition, const Json& schema,
                const std::string& path, int depth, Cases* out);
  bool MultiplyIf(const SchemaPlace& place, ExprId holds, const Json& schema,
                  const std::string& path, int depth, Cases* out);
  bool Multiply(const Cases& ways, Cases* cases);

  // A non-negative integer, else refused. kNoLimit when absent or refused.
  int32_t Count(const SchemaPlace& place, const char* keyword);
  bool Number(const SchemaPlace& place, const char* keyword, const Json& json, Decimal* out);
  TermId Pattern(const SchemaPlace& place, const char* keyword, const std::string& pattern);

  SchemaDocument& document_;
  Exprs& e_;
  Languages& l_;
  SchemaOptions options_;
  std::deque<Schema> schemas_;
  std::map<std::pair<const Json*, int32_t>, int32_t> ids_;  // by schema and scope
  // The meaning of $dynamicAnchor names by the path to a schema; index 0: none met.
  std::map<SchemaDocument::DynamicScope, int32_t> scope_ids_ = {{{}, 0}};
  std::deque<SchemaDocument::DynamicScope> scopes_ = {{}};
  int32_t scope_ = 0;  // of the schema being translated
  std::unordered_map<std::string, TermId> patterns_;
  std::unordered_map<std::string, TermId> formats_;
  std::vector<Refusal> refusals_;
};

}  // namespace aisp
