// Evaluates expressions.
#include <algorithm>

#include "text/jinja_interpreter.h"
#include "text/jinja_lexer.h"

namespace aisp::jinja {

Result<Value> Interpreter::Eval(const Expr& e) {
  const Nesting nesting(&depth_);
  line_ = e.line;
  if (depth_ > kMaxEvalDepth) return Fail("nested deeper than " + std::to_string(kMaxEvalDepth));
  AISP_RETURN_IF_ERROR(Charge(1 + e.name.size() / kBytesPerStep));
  return EvalKind(e);
}

// Long: one case for each kind of expression.
Result<Value> Interpreter::EvalKind(const Expr& e) {
  using Kind = Expr::Kind;
  switch (e.kind) {
    case Kind::kLiteral:
      return e.value;
    case Kind::kName:
      return EvalName(e);
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kConcat:
      return EvalItems(e);
    case Kind::kDict:
      return EvalDict(e);
    case Kind::kCompare:
      return EvalCompare(e);
    case Kind::kSlice:
      return EvalSlice(e);
    case Kind::kFilter:
      return EvalFilter(e, nullptr);
    default:
      break;
  }
  AISP_ASSIGN_OR_RETURN(const Value a, Eval(*e.a));
  switch (e.kind) {
    case Kind::kAnd:
      return Truthy(a) ? Eval(*e.b) : Result<Value>(a);
    case Kind::kOr:
      return Truthy(a) ? Result<Value>(a) : Eval(*e.b);
    case Kind::kNot:
      return Value(!Truthy(a));
    case Kind::kCond:
      if (Truthy(a)) return Eval(*e.b);
      if (e.c) return Eval(*e.c);
      return Value::Undefined(
          "the inline if-expression evaluated to false and no else section was defined");
    case Kind::kUnary:
      line_ = e.line;
      return Negate(a, e.name);
    case Kind::kAttr:
      line_ = e.line;
      return GetAttr(a, e.name);
    case Kind::kBinary: {
      AISP_ASSIGN_OR_RETURN(const Value b, Eval(*e.b));
      line_ = e.line;
      return Arithmetic(e.name, a, b);
    }
    case Kind::kItem: {
      AISP_ASSIGN_OR_RETURN(const Value b, Eval(*e.b));
      line_ = e.line;
      return GetItem(a, b);
    }
    case Kind::kCall: {
      AISP_ASSIGN_OR_RETURN(const Args args, EvalArgs(e));
      line_ = e.line;
      return Call(a, args);
    }
    case Kind::kTest: {
      AISP_ASSIGN_OR_RETURN(const Args args, EvalArgs(e));
      line_ = e.line;
      AISP_ASSIGN_OR_RETURN(const bool result, ApplyTest(e.name, a, args));
      return Value(result);
    }
    default:
      return Fail("expression of an unknown kind");
  }
}

const Value* Interpreter::Lookup(const std::string& name, size_t* seen) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    *seen += 1 + scope->variables.size();
    for (const auto& [key, value] : scope->variables) {
      if (key == name) return &value;
    }
  }
  if (const Value* value = context_.Find(name)) return value;
  return globals_.Find(name);
}

Result<Value> Interpreter::EvalName(const Expr& e) {
  size_t seen = 0;
  const Value* value = Lookup(e.name, &seen);
  AISP_RETURN_IF_ERROR(Charge(seen / 16));
  if (value != nullptr) return *value;
  return Value::Undefined("'" + e.name + "' is undefined");
}

Result<Value> Interpreter::EvalCompare(const Expr& e) {
  AISP_ASSIGN_OR_RETURN(Value left, Eval(*e.a));
  for (size_t i = 0; i < e.ops.size(); ++i) {
    AISP_ASSIGN_OR_RETURN(Value right, Eval(*e.items[i]));
    line_ = e.line;
    const std::string& op = e.ops[i];
    bool holds = false;
    if (op == "==" || op == "!=") {
      AISP_ASSIGN_OR_RETURN(const bool equal, Equal(left, right));
      holds = equal == (op == "==");
    } else if (op == "in" || op == "not in") {
      AISP_ASSIGN_OR_RETURN(const bool contains, Contains(right, left));
      holds = contains == (op == "in");
    } else {
      AISP_ASSIGN_OR_RETURN(const int order, Order(left, right));
      holds = op == "<" ? order < 0 : op == "<=" ? order <= 0 : op == ">" ? order > 0 : order >= 0;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Interpreter::EvalItems(const Expr& e) {
  Value::List items;
  std::string joined;
  for (const ExprPtr& item : e.items) {
    AISP_ASSIGN_OR_RETURN(Value value, Eval(*item));
    if (e.kind == Expr::Kind::kConcat) {
      AISP_ASSIGN_OR_RETURN(const std::string text, Str(value));
      AISP_RETURN_IF_ERROR(Fits(joined.size() + text.size()));
      joined += text;
    } else {
      items.push_back(std::move(value));
    }
  }
  if (e.kind == Expr::Kind::kConcat) return Checked(Value(std::move(joined)));
  return Checked(e.kind == Expr::Kind::kList ? Value::GrowableList(std::move(items))
                                             : Value::Tuple(std::move(items)));
}

Result<Value> Interpreter::EvalDict(const Expr& e) {
  Value::Map map;
  for (size_t i = 0; i + 1 < e.items.size(); i += 2) {
    AISP_ASSIGN_OR_RETURN(const Value key, Eval(*e.items[i]));
    if (!key.IsString())
      return Fail("only strings can be keys of a dict here, not " +
                  std::string(PythonTypeName(key)));
    AISP_ASSIGN_OR_RETURN(Value value, Eval(*e.items[i + 1]));
    map.Set(key.AsString(), std::move(value));
  }
  return Checked(Value(std::move(map)));
}

Result<Value> Interpreter::EvalSlice(const Expr& e) {
  AISP_ASSIGN_OR_RETURN(const Value object, Eval(*e.a));
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (e.items[i]) {
      AISP_ASSIGN_OR_RETURN(bounds[i], Eval(*e.items[i]));
    }
  }
  line_ = e.line;
  return GetSlice(object, bounds[0], bounds[1], bounds[2]);
}

Result<Value> Interpreter::EvalFilter(const Expr& e, const Value* head) {
  Value value = head != nullptr ? *head : Value();
  if (e.a && head != nullptr) {
    AISP_ASSIGN_OR_RETURN(value, EvalFilter(*e.a, head));
  } else if (e.a) {
    AISP_ASSIGN_OR_RETURN(value, Eval(*e.a));
  }
  AISP_ASSIGN_OR_RETURN(const Args args, EvalArgs(e));
  line_ = e.line;
  AISP_ASSIGN_OR_RETURN(Value result, ApplyFilter(e.name, value, args));
  return Checked(std::move(result));
}

Result<Args> Interpreter::EvalArgs(const Expr& e) {
  Args args;
  for (const ExprPtr& item : e.items) {
    AISP_ASSIGN_OR_RETURN(Value value, Eval(*item));
    args.positional.push_back(std::move(value));
  }
  for (const auto& [name, item] : e.named) {
    AISP_ASSIGN_OR_RETURN(Value value, Eval(*item));
    args.named.emplace_back(name, std::move(value));
  }
  return args;
}

Result<Value> Interpreter::LoopAttr(const std::shared_ptr<Loop>& loop, const std::string& name) {
  if (loop->items == nullptr) return Fail("the loop is over");
  const Value::List& items = *loop->items;
  const auto i = static_cast<int64_t>(loop->index0);
  const auto n = static_cast<int64_t>(items.size());
  if (name == "index") return Value(i + 1);
  if (name == "index0") return Value(i);
  if (name == "revindex") return Value(n - i);
  if (name == "revindex0") return Value(n - i - 1);
  if (name == "first") return Value(i == 0);
  if (name == "last") return Value(i + 1 == n);
  if (name == "length") return Value(n);
  if (name == "depth") return Value(loop->depth0 + 1);
  if (name == "depth0") return Value(loop->depth0);
  if (name == "previtem")
    return i > 0 ? items[loop->index0 - 1] : Value::Undefined("there is no previous item");
  if (name == "nextitem")
    return i + 1 < n ? items[loop->index0 + 1] : Value::Undefined("there is no next item");
  const auto function = [&](Function::Body body) {
    return Value(
        std::static_pointer_cast<Value::Object>(std::make_shared<Function>(name, std::move(body))));
  };
  if (name == "cycle") {
    return function([i](Interpreter& in, const Args& args) -> Result<Value> {
      if (args.positional.empty()) return in.Fail("no items for cycling given");
      return args.positional[static_cast<size_t>(i) % args.positional.size()];
    });
  }
  if (name == "changed") {
    return function(
        [weak = std::weak_ptr<Loop>(loop)](Interpreter& in, const Args& args) -> Result<Value> {
          // Weak: a variable that outlives the loop could otherwise form a reference cycle with it.
          const auto self = weak.lock();
          if (!self || self->items == nullptr) return in.Fail("the loop is over");
          AISP_ASSIGN_OR_RETURN(Value now, in.Checked(Value::Tuple(args.positional)));
          bool same = false;
          if (self->changed) {
            AISP_ASSIGN_OR_RETURN(same, in.Equal(*self->changed, now));
          }
          self->changed = std::move(now);
          return Value(!same);
        });
  }
  return Value::Undefined("'LoopContext object' has no attribute '" + name + "'");
}

Result<Value> Interpreter::GetAttr(const Value& object, const std::string& name) {
  if (object.IsUndefined()) return Fail(object.UndefinedMessage());
  if (object.IsObject()) {
    if (const auto loop = std::dynamic_pointer_cast<Loop>(object.AsObject()))
      return LoopAttr(loop, name);
    if (const auto* ns = dynamic_cast<const Namespace*>(object.AsObject().get())) {
      if (const Value* member = ns->members.Find(name)) return *member;
    }
  }
  if (const auto method = FindMethod(object, name))
    return Value(std::static_pointer_cast<Value::Object>(method));
  if (object.IsMap()) {
    if (const Value* member = object.AsMap().Find(name)) return *member;
  }
  const std::string type =
      object.IsNone() ? "None" : "'" + std::string(PythonTypeName(object)) + " object'";
  return Value::Undefined(type + " has no attribute '" + name + "'");
}

}  // namespace aisp::jinja
