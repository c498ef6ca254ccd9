// The tests of templates, which follow "is" (jinja2/tests.py).
#include "common/strings.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_strings.h"

namespace aisp::jinja {
namespace {

Result<bool> CompareTest(Interpreter& in, std::string_view op, const Value& v, const Args& args) {
  const Value* other = args.Find(0, "other");
  if (other == nullptr) return in.Fail("the test needs an argument");
  if (op == "==" || op == "!=") {
    AISP_ASSIGN_OR_RETURN(const bool same, in.Equal(v, *other));
    return same == (op == "==");
  }
  AISP_ASSIGN_OR_RETURN(const int order, in.Order(v, *other));
  return op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
}

// The operator of a comparing test, or "".
std::string_view OperatorOf(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"eq", "=="}, {"equalto", "=="},    {"==", "=="}, {"ne", "!="}, {"!=", "!="},
      {"lt", "<"},  {"lessthan", "<"},    {"<", "<"},   {"le", "<="}, {"<=", "<="},
      {"gt", ">"},  {"greaterthan", ">"}, {">", ">"},   {"ge", ">="}, {">=", ">="}};
  for (const auto& [from, to] : kNames) {
    if (from == name) return to;
  }
  return {};
}

bool IsIterable(const Value& v) {
  return v.IsString() || v.IsList() || v.IsMap() || v.IsUndefined() ||
         (v.IsObject() && dynamic_cast<const Generator*>(v.AsObject().get()) != nullptr);
}

bool IsCallable(const Value& v) {
  return v.IsObject() &&
         (v.AsObject()->TypeName() == "function" || v.AsObject()->TypeName() == "Macro");
}

// Tests of the value's type alone; nullopt for any other name.
std::optional<bool> TypeTest(std::string_view name, const Value& v) {
  if (name == "defined") return !v.IsUndefined();
  if (name == "undefined") return v.IsUndefined();
  if (name == "none") return v.IsNone();
  if (name == "string") return v.IsString();
  if (name == "mapping") return v.IsMap();
  if (name == "iterable") return IsIterable(v);
  if (name == "sequence") return v.IsString() || v.IsList() || v.IsMap() || v.IsUndefined();
  if (name == "boolean") return v.IsBool();
  if (name == "true") return v.IsBool() && v.AsBool();
  if (name == "false") return v.IsBool() && !v.AsBool();
  if (name == "integer") return v.IsInt();
  if (name == "float") return v.IsFloat();
  if (name == "number") return v.IsNumber();
  if (name == "callable") return IsCallable(v);
  if (name == "escaped") return v.IsMarkup();
  return std::nullopt;
}

}  // namespace

Result<bool> Interpreter::ApplyTest(const std::string& name, const Value& v, const Args& args) {
  AISP_RETURN_IF_ERROR(Charge(1));
  if (const std::optional<bool> result = TypeTest(name, v)) return *result;
  if (const std::string_view op = OperatorOf(name); !op.empty())
    return CompareTest(*this, op, v, args);
  const Value* other = args.Find(0, "other");
  if (name == "in") {
    if (other == nullptr) return Fail("the test 'in' needs an argument");
    return Contains(*other, v);
  }
  if (name == "sameas") {
    if (other == nullptr) return Fail("the test 'sameas' needs an argument");
    if (v.kind() != other->kind()) return false;
    return Equal(v, *other);
  }
  if (name == "odd" || name == "even" || name == "divisibleby") {
    const Value divisor = name == "divisibleby" && other != nullptr ? *other : Value(int64_t{2});
    AISP_ASSIGN_OR_RETURN(const Value rest, Arithmetic("%", v, divisor));
    return Truthy(rest) == (name == "odd");
  }
  if (name == "lower" || name == "upper") {
    AISP_ASSIGN_OR_RETURN(const std::string s, Str(v));
    const std::string mapped = name == "lower" ? Lower(s) : Upper(s);
    return s == mapped && Lower(s) != Upper(s);
  }
  return Fail("no test named '" + Excerpt(name) + "'");
}

}  // namespace aisp::jinja
