// Keywords of arrays and objects, and unevaluated*.
#include <algorithm>

#include "constrain/schema_strings.h"
#include "constrain/schema_translator.h"

namespace aisp {
namespace {

constexpr size_t kMaxCases = 64;
constexpr int kMaxCaseDepth = 16;

const Json* Get(const SchemaPlace& place, const char* keyword) { return place.json->Find(keyword); }

}  // namespace

ExprId SchemaTranslator::ItemSchemas(const SchemaPlace& place) {
  std::vector<ExprId> prefix;
  ExprId rest = Exprs::kTrue;
  const Json *items = Get(place, "items"), *more = Get(place, "additionalItems");
  const Json* tuple = place.draft >= Draft::k2020 ? Get(place, "prefixItems") : nullptr;
  const char* tuple_name = "prefixItems";
  if (tuple == nullptr && items != nullptr && items->IsArray()) {
    // Before 2020-12 a list under `items` has the meaning of prefixItems.
    tuple = items;
    tuple_name = "items";
    items = nullptr;
    if (more != nullptr) rest = Sub(place, *more, "additionalItems");
  }
  if (tuple != nullptr && tuple->IsArray()) {
    for (size_t i = 0; i < tuple->items.size(); ++i) {
      prefix.push_back(
          Sub(place, tuple->items[i], std::string(tuple_name) + "/" + std::to_string(i)));
    }
  }
  if (items != nullptr) rest = Sub(place, *items, "items");
  return e_.Items(std::move(prefix), rest);
}

ExprId SchemaTranslator::Arrays(const SchemaPlace& place) {
  std::vector<ExprId> all = {ItemSchemas(place)};
  const int32_t min = Count(place, "minItems"), max = Count(place, "maxItems");
  if (min > 0) all.push_back(e_.Counted(Atom::Kind::kMinItems, min));
  if (max != kNoLimit) all.push_back(e_.Counted(Atom::Kind::kMaxItems, max));
  const Json* contains = place.draft >= Draft::k6 ? Get(place, "contains") : nullptr;
  if (contains != nullptr) {
    const bool counted = place.draft >= Draft::k2019;
    const int32_t least = counted && Get(place, "minContains") ? Count(place, "minContains") : 1;
    const int32_t most = counted ? Count(place, "maxContains") : kNoLimit;
    all.push_back(e_.Contains(Sub(place, *contains, "contains"), 0, least, most));
  }
  const Json* unique = Get(place, "uniqueItems");
  if (unique != nullptr && unique->boolean) {
    Atom atom;
    atom.kind = Atom::Kind::kUnique;
    all.push_back(e_.MakeAtom(std::move(atom)));
  }
  return e_.And(std::move(all));
}

ExprId SchemaTranslator::Properties(const SchemaPlace& place) {
  Atom atom;
  atom.kind = Atom::Kind::kProperties;
  atom.rest = Exprs::kTrue;
  if (const Json* names = Get(place, "properties")) {
    if (!names->IsObject()) Refuse(place.pointer, "properties", "an object is expected");
    for (const auto& [name, schema] : names->members) {
      if (names->Find(name) != &schema) continue;
      atom.names.emplace_back(name, Sub(place, schema, "properties/" + EscapePointer(name)));
    }
    std::sort(atom.names.begin(), atom.names.end());
  }
  if (const Json* patterns = Get(place, "patternProperties")) {
    if (!patterns->IsObject()) Refuse(place.pointer, "patternProperties", "an object is expected");
    for (const auto& [pattern, schema] : patterns->members) {
      const TermId term = Pattern(place, "patternProperties", pattern);
      atom.patterns.emplace_back(term,
                                 Sub(place, schema, "patternProperties/" + EscapePointer(pattern)));
    }
  }
  if (const Json* rest = Get(place, "additionalProperties")) {
    atom.rest = Sub(place, *rest, "additionalProperties");
  }
  const bool nothing = atom.names.empty() && atom.patterns.empty() && atom.rest == Exprs::kTrue;
  return nothing ? Exprs::kTrue : e_.MakeAtom(std::move(atom));
}

ExprId SchemaTranslator::MemberNames(const SchemaPlace& place) {
  const Json* schema = place.draft >= Draft::k6 ? Get(place, "propertyNames") : nullptr;
  if (schema == nullptr) return Exprs::kTrue;
  const ExprId names = Sub(place, *schema, "propertyNames");
  const auto language = StringsOf(names, &e_, &l_, [this](int32_t i) { return Formula(i); });
  if (!language) {
    Refuse(place.pointer, "propertyNames", language.error().message);
    return Exprs::kTrue;
  }
  if (*language == Languages::kAnyText) return Exprs::kTrue;
  Atom atom;
  atom.kind = Atom::Kind::kMemberNames;
  atom.language = *language;
  return e_.MakeAtom(std::move(atom));
}

ExprId SchemaTranslator::Objects(const SchemaPlace& place) {
  std::vector<ExprId> all = {Properties(place), MemberNames(place), Dependencies(place)};
  if (const Json* required = Get(place, "required")) {
    if (!required->IsArray()) Refuse(place.pointer, "required", "a list of names is expected");
    for (const Json& name : required->items) {
      if (!name.IsString()) {
        Refuse(place.pointer, "required", "a list of names is expected");
        break;
      }
      all.push_back(e_.Required(name.text));
    }
  }
  const int32_t min = Count(place, "minProperties"), max = Count(place, "maxProperties");
  if (min > 0) all.push_back(e_.Counted(Atom::Kind::kMinMembers, min));
  if (max != kNoLimit) all.push_back(e_.Counted(Atom::Kind::kMaxMembers, max));
  return e_.And(std::move(all));
}

ExprId SchemaTranslator::Dependencies(const SchemaPlace& place) {
  std::vector<ExprId> all;
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const Json* map = Get(place, keyword);
    // dependentRequired and dependentSchemas came with 2019-09; `dependencies` keeps its old
    // meaning.
    const bool early = keyword != std::string_view("dependencies") && place.draft < Draft::k2019;
    if (map == nullptr || early) continue;
    if (!map->IsObject()) {
      Refuse(place.pointer, keyword, "an object is expected");
      continue;
    }
    for (const auto& [name, value] : map->members) {
      std::vector<ExprId> then = {};
      if (value.IsArray()) {
        for (const Json& other : value.items) then.push_back(e_.Required(other.text));
      } else {
        then.push_back(Sub(place, value, std::string(keyword) + "/" + EscapePointer(name)));
      }
      const ExprId consequence = e_.And(std::move(then));
      if (consequence != Exprs::kTrue) all.push_back(e_.Or({e_.Absent(name), consequence}));
    }
  }
  return e_.And(std::move(all));
}

// unevaluated*: each combination in which the neighbouring keywords hold says what was evaluated;
// the rest is limited in that case.
ExprId SchemaTranslator::Unevaluated(const SchemaPlace& place) {
  std::vector<ExprId> all;
  for (const bool members : {true, false}) {
    const char* keyword = members ? "unevaluatedProperties" : "unevaluatedItems";
    const Json* schema = place.draft >= Draft::k2019 ? Get(place, keyword) : nullptr;
    if (schema == nullptr) continue;
    const ExprId rest = Sub(place, *schema, keyword);
    if (rest == Exprs::kTrue) continue;
    Cases cases;
    if (!CasesOf(place, false, 0, &cases)) {
      Refuse(place.pointer, keyword, "what is evaluated cannot be told for each case");
      continue;
    }
    std::vector<ExprId> all_cases;
    for (const Evaluated& seen : cases) {
      ExprId limit = Exprs::kTrue;
      if (members && !seen.all_members) {
        Atom atom;
        atom.kind = Atom::Kind::kProperties;
        atom.rest = rest;
        for (const std::string& name : seen.names) atom.names.emplace_back(name, Exprs::kTrue);
        for (const TermId p : seen.patterns) atom.patterns.emplace_back(p, Exprs::kTrue);
        limit = e_.MakeAtom(std::move(atom));
      } else if (!members && !seen.all_items) {
        std::vector<ExprId> ways = seen.matched;
        ways.push_back(rest);
        limit = e_.Items(std::vector<ExprId>(static_cast<size_t>(seen.items), Exprs::kTrue),
                         e_.Or(std::move(ways)));
      }
      all_cases.push_back(e_.And({seen.condition, limit}));
    }
    all.push_back(e_.Or(std::move(all_cases)));
  }
  return e_.And(std::move(all));
}

bool SchemaTranslator::Multiply(const Cases& ways, Cases* cases) {
  if (ways.size() * cases->size() > kMaxCases) return false;
  Cases out;
  for (const Evaluated& a : *cases) {
    for (const Evaluated& b : ways) {
      Evaluated both = a;
      both.condition = e_.And({a.condition, b.condition});
      both.all_members = a.all_members || b.all_members;
      both.all_items = a.all_items || b.all_items;
      both.names.insert(b.names.begin(), b.names.end());
      both.patterns.insert(b.patterns.begin(), b.patterns.end());
      both.items = std::max(a.items, b.items);
      both.matched.insert(both.matched.end(), b.matched.begin(), b.matched.end());
      if (both.condition != Exprs::kFalse) out.push_back(std::move(both));
    }
  }
  *cases = std::move(out);
  return true;
}

// `inner`: a subschema of the one with the keyword, whose own unevaluated* count as well.
bool SchemaTranslator::CasesOf(const SchemaPlace& place, bool inner, int depth, Cases* out) {
  out->assign(1, {});
  if (depth > kMaxCaseDepth) return false;
  if (!place.json->IsObject()) return true;
  if (Get(place, "$dynamicRef") != nullptr || Get(place, "$recursiveRef") != nullptr) return false;
  Evaluated& own = out->front();
  if (const Json* names = Get(place, "properties")) {
    for (const auto& [name, schema] : names->members) own.names.insert(name);
  }
  if (const Json* patterns = Get(place, "patternProperties")) {
    for (const auto& [pattern, schema] : patterns->members) {
      own.patterns.insert(Pattern(place, "patternProperties", pattern));
    }
  }
  own.all_members = Get(place, "additionalProperties") != nullptr ||
                    (inner && Get(place, "unevaluatedProperties") != nullptr);
  own.all_items = inner && Get(place, "unevaluatedItems") != nullptr;
  const Json *items = Get(place, "items"), *prefix = Get(place, "prefixItems");
  if (items != nullptr && items->IsArray()) {
    own.items = static_cast<int32_t>(items->items.size());
    own.all_items = own.all_items || Get(place, "additionalItems") != nullptr;
  } else if (items != nullptr) {
    own.all_items = true;
  }
  if (prefix != nullptr) own.items = static_cast<int32_t>(prefix->items.size());
  // In 2020-12 an item matched by `contains` is evaluated.
  const Json* contains = place.draft >= Draft::k2020 ? Get(place, "contains") : nullptr;
  if (contains != nullptr) own.matched.push_back(Sub(place, *contains, "contains"));
  return CasesOfApplicators(place, depth, out);
}

// Under a condition, what `schema` evaluates.
bool SchemaTranslator::AddCases(const SchemaPlace& place, ExprId condition, const Json& schema,
                                const std::string& path, int depth, Cases* out) {
  Cases cases;
  if (!CasesOf(document_.Child(place, schema, path), true, depth + 1, &cases)) return false;
  for (Evaluated& c : cases) {
    c.condition = e_.And({condition, c.condition});
    out->push_back(std::move(c));
  }
  return true;
}

// What `schema` evaluates if `holds`, else nothing.
bool SchemaTranslator::MultiplyIf(const SchemaPlace& place, ExprId holds, const Json& schema,
                                  const std::string& path, int depth, Cases* out) {
  Cases ways;
  if (!AddCases(place, holds, schema, path, depth, &ways)) return false;
  if (holds != Exprs::kTrue) ways.emplace_back().condition = e_.Not(holds);
  return Multiply(ways, out);
}

bool SchemaTranslator::CasesOfApplicators(const SchemaPlace& place, int depth, Cases* out) {
  Cases ways;
  if (Get(place, "$ref") != nullptr) {
    // The path to the target would matter, which is not supported here.
    const SchemaPlace* target = document_.ManyDynamicAnchors() ? nullptr : Target(place, "$ref");
    if (target == nullptr || !CasesOf(*target, true, depth + 1, &ways)) return false;
    if (!Multiply(ways, out)) return false;
  }
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    const Json* list = Get(place, keyword);
    const bool all = keyword == std::string_view("allOf");
    for (size_t i = 0; list != nullptr && i < list->items.size(); ++i) {
      const std::string path = std::string(keyword) + "/" + std::to_string(i);
      const ExprId branch = all ? Exprs::kTrue : Sub(place, list->items[i], path);
      if (!MultiplyIf(place, branch, list->items[i], path, depth, out)) return false;
    }
  }
  if (const Json* map = Get(place, "dependentSchemas")) {
    for (const auto& [name, schema] : map->members) {
      const ExprId present = e_.And({e_.Type(Bit(JsonType::kObject)), e_.Required(name)});
      const std::string path = "dependentSchemas/" + EscapePointer(name);
      if (!MultiplyIf(place, present, schema, path, depth, out)) return false;
    }
  }
  return CasesOfCondition(place, depth, out);
}

bool SchemaTranslator::CasesOfCondition(const SchemaPlace& place, int depth, Cases* out) {
  const Json* condition = Get(place, "if");
  if (condition == nullptr) return true;
  const ExprId holds = Sub(place, *condition, "if");
  const Json *yes = Get(place, "then"), *no = Get(place, "else");
  Cases seen, then_cases, else_cases;
  if (!AddCases(place, holds, *condition, "if", depth, &seen)) return false;
  if (yes != nullptr && (!AddCases(place, Exprs::kTrue, *yes, "then", depth, &then_cases) ||
                         !Multiply(then_cases, &seen)))
    return false;
  if (no == nullptr) {
    else_cases.emplace_back().condition = e_.Not(holds);
  } else if (!AddCases(place, e_.Not(holds), *no, "else", depth, &else_cases)) {
    return false;
  }
  seen.insert(seen.end(), else_cases.begin(), else_cases.end());
  return Multiply(seen, out);
}

}  // namespace aisp
