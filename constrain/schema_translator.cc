#include "constrain/schema_translator.h"

#include <algorithm>
#include <utility>

#include "constrain/automaton.h"
#include "constrain/formats.h"
#include "constrain/pattern.h"
#include "text/utf8.h"

namespace aisp {
namespace {

constexpr size_t kMaxRefusals = 100;

const Json* Get(const SchemaPlace& place, const char* keyword) { return place.json->Find(keyword); }

}  // namespace

SchemaTranslator::SchemaTranslator(SchemaDocument* document, Exprs* exprs, Languages* languages,
                                   SchemaOptions options)
    : document_(*document), e_(*exprs), l_(*languages), options_(std::move(options)) {}

const std::string& SchemaTranslator::PointerOf(int32_t index) const {
  return schemas_[static_cast<size_t>(index)].place->pointer;
}

void SchemaTranslator::Refuse(const std::string& pointer, const std::string& keyword,
                              const std::string& reason) {
  const auto& relaxed = options_.relaxed;
  auto has = [&](std::string_view name) {
    return std::find(relaxed.begin(), relaxed.end(), name) != relaxed.end();
  };
  if (has(keyword) || (has("*") && keyword != "schema")) return;
  Refusal refusal{keyword, pointer, reason};
  if (refusals_.size() < kMaxRefusals &&
      std::find(refusals_.begin(), refusals_.end(), refusal) == refusals_.end()) {
    refusals_.push_back(std::move(refusal));
  }
}

ExprId SchemaTranslator::Reference(const SchemaPlace& place) {
  const Json& json = *place.json;
  if (json.IsBool()) return json.boolean ? Exprs::kTrue : Exprs::kFalse;
  if (json.IsObject() && json.members.empty()) return Exprs::kTrue;
  int32_t scope = scope_;
  if (document_.ManyDynamicAnchors()) {
    SchemaDocument::DynamicScope entered = scopes_[static_cast<size_t>(scope)];
    document_.Enter(place, &entered);
    const auto [known, met] = scope_ids_.try_emplace(entered, static_cast<int32_t>(scopes_.size()));
    if (met) scopes_.push_back(std::move(entered));
    scope = known->second;
  }
  const auto [it, fresh] = ids_.try_emplace({&json, scope}, static_cast<int32_t>(schemas_.size()));
  if (fresh) schemas_.push_back({&place, -1, scope});
  return e_.Reference(it->second);
}

ExprId SchemaTranslator::Sub(const SchemaPlace& parent, const Json& json, const std::string& path) {
  return Reference(document_.Child(parent, json, path));
}

ExprId SchemaTranslator::Formula(int32_t index) {
  const auto i = static_cast<size_t>(index);
  if (schemas_[i].formula < 0) {
    const int32_t outer = std::exchange(scope_, schemas_[i].scope);
    const ExprId formula = Translate(*schemas_[i].place);
    schemas_[i].formula = formula;
    scope_ = outer;
  }
  return schemas_[i].formula;
}

ExprId SchemaTranslator::Translate(const SchemaPlace& place) {
  if (!place.json->IsObject()) {
    Refuse(place.pointer, "schema", "a schema is an object or a boolean");
    return Exprs::kTrue;
  }
  if (Get(place, "$ref") != nullptr && place.draft <= Draft::k7) return Refer(place, "$ref");
  std::vector<ExprId> all;
  for (const char* keyword : {"$ref", "$dynamicRef", "$recursiveRef"}) {
    if (Get(place, keyword) != nullptr) all.push_back(Refer(place, keyword));
  }
  all.push_back(TypeKeyword(place));
  all.push_back(Values(place));
  all.push_back(NumberLimits(place));
  all.push_back(Strings(place));
  all.push_back(Arrays(place));
  all.push_back(Objects(place));
  all.push_back(Applicators(place));
  all.push_back(Unevaluated(place));
  return e_.And(std::move(all));
}

const SchemaPlace* SchemaTranslator::Target(const SchemaPlace& place, const char* keyword) {
  const Json& ref = *Get(place, keyword);
  if (!ref.IsString()) {
    Refuse(place.pointer, keyword, "not a string");
    return nullptr;
  }
  const std::string_view name = keyword;
  if (name == "$recursiveRef" && document_.HasRecursiveScopes()) {
    Refuse(place.pointer, keyword, "a dynamic scope cannot be enforced");
    return nullptr;
  }
  const auto target =
      name == "$dynamicRef"
          ? document_.ResolveDynamic(place, ref.text, scopes_[static_cast<size_t>(scope_)])
          : document_.Resolve(place, ref.text);
  if (!target) {
    Refuse(place.pointer, keyword, target.error().message);
    return nullptr;
  }
  return *target;
}

ExprId SchemaTranslator::Refer(const SchemaPlace& place, const char* keyword) {
  const SchemaPlace* target = Target(place, keyword);
  return target == nullptr ? Exprs::kTrue : Reference(*target);
}

ExprId SchemaTranslator::Join(const SchemaPlace& place, const char* keyword) {
  const Json* list = Get(place, keyword);
  if (list == nullptr) return Exprs::kTrue;
  const std::string_view name = keyword;
  if (!list->IsArray() || list->items.empty()) {
    Refuse(place.pointer, keyword, "a list of schemas is expected");
    return Exprs::kTrue;
  }
  std::vector<ExprId> parts;
  parts.reserve(list->items.size());
  for (size_t i = 0; i < list->items.size(); ++i) {
    parts.push_back(Sub(place, list->items[i], std::string(keyword) + "/" + std::to_string(i)));
  }
  if (name == "allOf") return e_.And(std::move(parts));
  if (name == "anyOf") return e_.Or(std::move(parts));
  return e_.ExactlyOne(std::move(parts));
}

ExprId SchemaTranslator::Condition(const SchemaPlace& place) {
  const Json* condition = place.draft >= Draft::k7 ? Get(place, "if") : nullptr;
  if (condition == nullptr) return Exprs::kTrue;
  const Json *yes = Get(place, "then"), *no = Get(place, "else");
  if (yes == nullptr && no == nullptr) return Exprs::kTrue;
  const ExprId a = Sub(place, *condition, "if");
  const ExprId then_part = yes != nullptr ? Sub(place, *yes, "then") : Exprs::kTrue;
  const ExprId else_part = no != nullptr ? Sub(place, *no, "else") : Exprs::kTrue;
  return e_.Or({e_.And({a, then_part}), e_.And({e_.Not(a), else_part})});
}

ExprId SchemaTranslator::Applicators(const SchemaPlace& place) {
  std::vector<ExprId> all = {Join(place, "allOf"), Join(place, "anyOf"), Join(place, "oneOf"),
                             Condition(place)};
  if (const Json* negated = Get(place, "not")) all.push_back(e_.Not(Sub(place, *negated, "not")));
  return e_.And(std::move(all));
}

ExprId SchemaTranslator::TypeKeyword(const SchemaPlace& place) {
  const Json* type = Get(place, "type");
  if (type == nullptr) return Exprs::kTrue;
  std::vector<const Json*> names;
  if (type->IsArray()) {
    for (const Json& item : type->items) names.push_back(&item);
  } else {
    names.push_back(type);
  }
  uint8_t types = 0;
  bool integer = false;
  for (const Json* name : names) {
    static constexpr std::string_view kNames[] = {"null",   "boolean", "number",
                                                  "string", "array",   "object"};
    const auto* known = std::find(std::begin(kNames), std::end(kNames), name->text);
    if (name->IsString() && known != std::end(kNames)) {
      types |= static_cast<uint8_t>(1u << (known - kNames));
    } else if (name->IsString() && name->text == "integer") {
      integer = true;
    } else {
      Refuse(place.pointer, "type", "unknown type " + WriteJson(*name));
      return Exprs::kTrue;
    }
  }
  if (!integer || (types & Bit(JsonType::kNumber)) != 0) return e_.Type(types);
  Atom whole;
  whole.kind = Atom::Kind::kNumber;
  whole.number.integer = true;
  whole.number.plain_integer = place.draft == Draft::k4;
  return e_.Or(
      {e_.Type(types), e_.And({e_.Type(Bit(JsonType::kNumber)), e_.MakeAtom(std::move(whole))})});
}

ExprId SchemaTranslator::Values(const SchemaPlace& place) {
  std::vector<ExprId> both;
  if (const Json* list = Get(place, "enum")) {
    if (!list->IsArray()) {
      Refuse(place.pointer, "enum", "a list is expected");
      return Exprs::kTrue;
    }
    std::vector<ExprId> ways;
    std::vector<std::u32string> texts;
    Atom numbers;
    numbers.kind = Atom::Kind::kNumber;
    numbers.number.values.emplace();
    for (const Json& value : list->items) {
      Decimal number;
      if (value.IsString()) {
        texts.push_back(ToUtf32(value.text));
      } else if (value.IsNumber()) {
        if (Number(place, "enum", value, &number)) numbers.number.values->push_back(number);
      } else {
        ways.push_back(Constant(place, "enum", value));
      }
    }
    if (!texts.empty()) {
      Atom atom;
      atom.kind = Atom::Kind::kLanguage;
      atom.language = l_.Literals(std::move(texts));
      ways.push_back(e_.And({e_.Type(Bit(JsonType::kString)), e_.MakeAtom(std::move(atom))}));
    }
    std::sort(numbers.number.values->begin(), numbers.number.values->end());
    if (!numbers.number.values->empty()) {
      ways.push_back(e_.And({e_.Type(Bit(JsonType::kNumber)), e_.MakeAtom(std::move(numbers))}));
    }
    both.push_back(e_.Or(std::move(ways)));
  }
  const Json* constant = place.draft >= Draft::k6 ? Get(place, "const") : nullptr;
  if (constant != nullptr) both.push_back(Constant(place, "const", *constant));
  return e_.And(std::move(both));
}

// Exactly this value.
ExprId SchemaTranslator::Constant(const SchemaPlace& place, const char* keyword,
                                  const Json& value) {
  const ExprId type = e_.Type(static_cast<uint8_t>(1u << static_cast<int>(value.type)));
  Atom atom;
  switch (value.type) {
    case Json::Type::kNull:
      return type;
    case Json::Type::kBool:
      atom.kind = Atom::Kind::kBool;
      atom.bools = value.boolean ? 2 : 1;
      break;
    case Json::Type::kNumber: {
      Decimal number;
      if (!Number(place, keyword, value, &number)) return Exprs::kTrue;
      atom.kind = Atom::Kind::kNumber;
      atom.number.values = {number};
      break;
    }
    case Json::Type::kString:
      atom.kind = Atom::Kind::kLanguage;
      atom.language = l_.Literal(value.text);
      break;
    case Json::Type::kArray: {
      std::vector<ExprId> items;
      items.reserve(value.items.size());
      for (const Json& item : value.items) items.push_back(Constant(place, keyword, item));
      const auto size = static_cast<int32_t>(items.size());
      return e_.And({type, e_.Items(std::move(items), Exprs::kFalse),
                     e_.Counted(Atom::Kind::kMinItems, size)});
    }
    case Json::Type::kObject: {
      std::vector<ExprId> all = {type};
      atom.kind = Atom::Kind::kProperties;
      atom.rest = Exprs::kFalse;
      for (const auto& [name, member] : value.members) {
        if (value.Find(name) != &member) continue;  // the last of equal names counts
        atom.names.emplace_back(name, Constant(place, keyword, member));
        all.push_back(e_.Required(name));
      }
      std::sort(atom.names.begin(), atom.names.end());
      all.push_back(e_.MakeAtom(std::move(atom)));
      return e_.And(std::move(all));
    }
  }
  return e_.And({type, e_.MakeAtom(std::move(atom))});
}

bool SchemaTranslator::Number(const SchemaPlace& place, const char* keyword, const Json& json,
                              Decimal* out) {
  const auto value = json.IsNumber() ? Decimal::Parse(json.text) : std::nullopt;
  if (!value) {
    Refuse(place.pointer, keyword,
           json.IsNumber() ? "a number of more than 37 digits" : "a number is expected");
    return false;
  }
  *out = *value;
  return true;
}

int32_t SchemaTranslator::Count(const SchemaPlace& place, const char* keyword) {
  const Json* json = Get(place, keyword);
  Decimal value;
  if (json == nullptr || !Number(place, keyword, *json, &value)) return kNoLimit;
  const auto whole = ScaleTo(value, 0);
  if (value.Sign() < 0 || !value.IsInteger()) {
    Refuse(place.pointer, keyword, "a whole number is expected");
    return kNoLimit;
  }
  return whole && *whole < 1'000'000'000 ? static_cast<int32_t>(*whole) : 1'000'000'000;
}

ExprId SchemaTranslator::NumberLimits(const SchemaPlace& place) {
  Atom atom;
  atom.kind = Atom::Kind::kNumber;
  std::vector<ExprId> all;
  for (const bool low : {true, false}) {
    const Json* bound = Get(place, low ? "minimum" : "maximum");
    const char* exclusive_name = low ? "exclusiveMinimum" : "exclusiveMaximum";
    const Json* exclusive = Get(place, exclusive_name);
    Decimal value;
    // In draft 4 it is a flag besides the bound.
    const bool flag = exclusive != nullptr && exclusive->IsBool();
    if (bound != nullptr && Number(place, low ? "minimum" : "maximum", *bound, &value)) {
      low ? atom.number.LimitLow(value, flag && exclusive->boolean)
          : atom.number.LimitHigh(value, flag && exclusive->boolean);
    }
    if (exclusive != nullptr && !flag && Number(place, exclusive_name, *exclusive, &value)) {
      low ? atom.number.LimitLow(value, true) : atom.number.LimitHigh(value, true);
    }
  }
  if (const Json* multiple = Get(place, "multipleOf")) {
    Decimal value;
    if (Number(place, "multipleOf", *multiple, &value)) {
      if (value.Sign() > 0) {
        atom.number.multiples.push_back(value);
      } else {
        Refuse(place.pointer, "multipleOf", "a number above 0 is expected");
      }
    }
  }
  return atom.number == NumberSpec() ? Exprs::kTrue : e_.MakeAtom(std::move(atom));
}

TermId SchemaTranslator::Pattern(const SchemaPlace& place, const char* keyword,
                                 const std::string& pattern) {
  const auto known = patterns_.find(pattern);
  if (known != patterns_.end()) return known->second;
  const auto term = CompilePattern(pattern, &l_);
  if (!term) {
    Refuse(place.pointer, keyword, term.error().message);
    return Languages::kAnyText;
  }
  if (!Automaton::IsNarrow(&l_, *term)) {
    Refuse(place.pointer, keyword, "the pattern needs more states than one may have");
    return patterns_[pattern] = Languages::kAnyText;
  }
  return patterns_[pattern] = *term;
}

ExprId SchemaTranslator::Strings(const SchemaPlace& place) {
  std::vector<ExprId> all;
  const int32_t min = Count(place, "minLength"), max = Count(place, "maxLength");
  if (min > 0) all.push_back(e_.Counted(Atom::Kind::kMinLength, min));
  if (max != kNoLimit) all.push_back(e_.Counted(Atom::Kind::kMaxLength, max));
  auto language = [&](TermId term) {
    if (term == Languages::kAnyText) return;
    Atom atom;
    atom.kind = Atom::Kind::kLanguage;
    atom.language = term;
    all.push_back(e_.MakeAtom(std::move(atom)));
  };
  if (const Json* pattern = Get(place, "pattern")) {
    if (pattern->IsString()) {
      language(Pattern(place, "pattern", pattern->text));
    } else {
      Refuse(place.pointer, "pattern", "a string is expected");
    }
  }
  // Draft 7 allows asserting them; later drafts define them as annotations.
  for (const char* keyword : {"contentEncoding", "contentMediaType"}) {
    if (place.draft == Draft::k7 && Get(place, keyword) != nullptr) {
      Refuse(place.pointer, keyword, "the content of strings cannot be enforced");
    }
  }
  const Json* format = Get(place, "format");
  if (format != nullptr && format->IsString() && options_.assert_formats) {
    auto known = formats_.find(format->text);
    if (known == formats_.end()) {
      const auto term = FormatLanguage(format->text, &l_);
      if (!term) Refuse(place.pointer, "format", term.error().message);
      known = formats_.emplace(format->text, term.value_or(Languages::kAnyText)).first;
      if (!term) formats_.erase(known), known = formats_.end();
    }
    if (known != formats_.end()) language(known->second);
  }
  return e_.And(std::move(all));
}

}  // namespace aisp
