#include "text/jinja_expressions.h"

#include <algorithm>

#include "text/jinja_parser.h"

namespace aisp::jinja {

ExprPtr ExpressionParser::New(Expr::Kind kind, int line) const {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = line;
  return e;
}

Result<ExprPtr> ExpressionParser::Done(ExprPtr e) const {
  int below = 0;
  const auto see = [&](const ExprPtr& child) {
    if (child) below = std::max(below, child->depth);
  };
  see(e->a);
  see(e->b);
  see(e->c);
  for (const ExprPtr& item : e->items) see(item);
  for (const auto& [name, item] : e->named) see(item);
  e->depth = below + 1;
  if (e->depth > kMaxTreeDepth) {
    return TemplateError(e->line, "expression nested deeper than " + std::to_string(kMaxTreeDepth));
  }
  return e;
}

Result<ExprPtr> ExpressionParser::Binary(Expr::Kind kind, int line, std::string name, ExprPtr a,
                                         ExprPtr b) const {
  ExprPtr e = New(kind, line);
  e->name = std::move(name);
  e->a = std::move(a);
  e->b = std::move(b);
  return Done(std::move(e));
}

Result<ExprPtr> ExpressionParser::Expression(bool with_condition) {
  const Nesting nesting(&level_);
  if (level_ > kMaxTreeDepth)
    return Fail("expression nested deeper than " + std::to_string(kMaxTreeDepth));
  AISP_ASSIGN_OR_RETURN(ExprPtr e, Or());
  while (with_condition && IsName("if")) {
    const int line = Now().line;
    Next();
    ExprPtr cond = New(Expr::Kind::kCond, line);
    cond->b = std::move(e);
    AISP_ASSIGN_OR_RETURN(cond->a, Or());
    if (SkipName("else")) {
      AISP_ASSIGN_OR_RETURN(cond->c, Expression());
    }
    AISP_ASSIGN_OR_RETURN(e, Done(std::move(cond)));
  }
  return e;
}

Result<ExprPtr> ExpressionParser::Or() {
  AISP_ASSIGN_OR_RETURN(ExprPtr left, And());
  while (IsName("or")) {
    const int line = Now().line;
    Next();
    AISP_ASSIGN_OR_RETURN(ExprPtr right, And());
    AISP_ASSIGN_OR_RETURN(left,
                          Binary(Expr::Kind::kOr, line, "or", std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::And() {
  AISP_ASSIGN_OR_RETURN(ExprPtr left, Not());
  while (IsName("and")) {
    const int line = Now().line;
    Next();
    AISP_ASSIGN_OR_RETURN(ExprPtr right, Not());
    AISP_ASSIGN_OR_RETURN(left,
                          Binary(Expr::Kind::kAnd, line, "and", std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::Not() {
  int line = Now().line;
  if (!SkipName("not")) return Compare();
  const Nesting nesting(&level_);
  if (level_ > kMaxTreeDepth)
    return Fail("expression nested deeper than " + std::to_string(kMaxTreeDepth));
  AISP_ASSIGN_OR_RETURN(ExprPtr operand, Not());
  return Binary(Expr::Kind::kNot, line, "not", std::move(operand), nullptr);
}

Result<ExprPtr> ExpressionParser::Compare() {
  const int line = Now().line;
  AISP_ASSIGN_OR_RETURN(ExprPtr left, Sum());
  std::vector<std::string> ops;
  std::vector<ExprPtr> operands;
  while (true) {
    static constexpr std::string_view kCompareOps[] = {"==", "!=", "<", "<=", ">", ">="};
    std::string op;
    if (Now().kind == Kind::kOperator &&
        std::count(std::begin(kCompareOps), std::end(kCompareOps), Now().text) != 0) {
      op = Now().text;
    } else if (IsName("in")) {
      op = "in";
    } else if (IsName("not") && Peek().kind == Kind::kName && Peek().text == "in") {
      op = "not in";
      Next();
    } else {
      break;
    }
    Next();
    ops.push_back(std::move(op));
    AISP_ASSIGN_OR_RETURN(ExprPtr operand, Sum());
    operands.push_back(std::move(operand));
  }
  if (ops.empty()) return left;
  ExprPtr e = New(Expr::Kind::kCompare, line);
  e->a = std::move(left);
  e->ops = std::move(ops);
  e->items = std::move(operands);
  return Done(std::move(e));
}

template <typename Operand>
Result<ExprPtr> ExpressionParser::LeftAssociative(std::initializer_list<std::string_view> ops,
                                                  Operand next) {
  AISP_ASSIGN_OR_RETURN(ExprPtr left, next());
  while (Now().kind == Kind::kOperator && std::count(ops.begin(), ops.end(), Now().text) != 0) {
    const int line = Now().line;
    std::string op = Now().text;
    Next();
    AISP_ASSIGN_OR_RETURN(ExprPtr right, next());
    AISP_ASSIGN_OR_RETURN(
        left, Binary(Expr::Kind::kBinary, line, std::move(op), std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::Sum() {
  return LeftAssociative({"+", "-"}, [this] { return Concat(); });
}

Result<ExprPtr> ExpressionParser::Concat() {
  const int line = Now().line;
  AISP_ASSIGN_OR_RETURN(ExprPtr first, Product());
  if (!IsOp("~")) return first;
  ExprPtr e = New(Expr::Kind::kConcat, line);
  e->items.push_back(std::move(first));
  while (SkipOp("~")) {
    AISP_ASSIGN_OR_RETURN(ExprPtr item, Product());
    e->items.push_back(std::move(item));
  }
  return Done(std::move(e));
}

Result<ExprPtr> ExpressionParser::Product() {
  return LeftAssociative({"*", "/", "//", "%"}, [this] { return Power(); });
}

Result<ExprPtr> ExpressionParser::Power() {
  return LeftAssociative({"**"}, [this] { return Unary(true); });
}

Result<ExprPtr> ExpressionParser::Unary(bool with_filter) {
  const Nesting nesting(&level_);
  if (level_ > kMaxTreeDepth)
    return Fail("expression nested deeper than " + std::to_string(kMaxTreeDepth));
  const int line = Now().line;
  ExprPtr e;
  if (IsOp("-") || IsOp("+")) {
    std::string op = Now().text;
    Next();
    AISP_ASSIGN_OR_RETURN(ExprPtr operand, Unary(false));
    AISP_ASSIGN_OR_RETURN(
        e, Binary(Expr::Kind::kUnary, line, std::move(op), std::move(operand), nullptr));
  } else {
    AISP_ASSIGN_OR_RETURN(e, Primary());
  }
  return Postfix(std::move(e), with_filter);
}

Result<ExprPtr> ExpressionParser::Postfix(ExprPtr e, bool with_filter) {
  while (true) {
    const int line = Now().line;
    if (SkipOp(".")) {
      if (Now().kind == Kind::kInteger) {
        ExprPtr index = New(Expr::Kind::kLiteral, line);
        AISP_ASSIGN_OR_RETURN(const int64_t i, ParseInt(Now().text));
        index->value = Value(i);
        Next();
        AISP_ASSIGN_OR_RETURN(e,
                              Binary(Expr::Kind::kItem, line, "", std::move(e), std::move(index)));
        continue;
      }
      AISP_ASSIGN_OR_RETURN(std::string name, ExpectName());
      AISP_ASSIGN_OR_RETURN(
          e, Binary(Expr::Kind::kAttr, line, std::move(name), std::move(e), nullptr));
    } else if (IsOp("[")) {
      AISP_ASSIGN_OR_RETURN(e, Subscript(std::move(e)));
    } else if (IsOp("(")) {
      ExprPtr call = New(Expr::Kind::kCall, line);
      call->a = std::move(e);
      AISP_RETURN_IF_ERROR(Arguments(call.get()));
      AISP_ASSIGN_OR_RETURN(e, Done(std::move(call)));
    } else if (with_filter && IsOp("|")) {
      Next();
      AISP_ASSIGN_OR_RETURN(e, Filter(std::move(e)));
    } else if (with_filter && IsName("is")) {
      AISP_ASSIGN_OR_RETURN(e, Test(std::move(e)));
    } else {
      return e;
    }
  }
}

Result<ExprPtr> ExpressionParser::Subscript(ExprPtr target) {
  const int line = Now().line;
  Next();
  ExprPtr parts[3];
  size_t colons = 0;
  while (true) {
    if (!IsOp(":") && !IsOp("]")) {
      AISP_ASSIGN_OR_RETURN(parts[colons], Expression());
    }
    if (!IsOp(":") || colons == 2) break;
    Next();
    ++colons;
  }
  if (colons == 0 && parts[0] && IsOp(","))
    return Fail("a subscript of several values is not supported");
  AISP_RETURN_IF_ERROR(ExpectOp("]"));
  if (colons == 0) {
    if (!parts[0]) return TemplateError(line, "expected a subscript");
    return Binary(Expr::Kind::kItem, line, "", std::move(target), std::move(parts[0]));
  }
  ExprPtr e = New(Expr::Kind::kSlice, line);
  e->a = std::move(target);
  for (ExprPtr& part : parts) e->items.push_back(std::move(part));
  return Done(std::move(e));
}

Status ExpressionParser::Arguments(Expr* call) {
  AISP_RETURN_IF_ERROR(ExpectOp("("));
  while (!IsOp(")")) {
    if (IsOp("*") || IsOp("**")) return Fail("unpacking arguments is not supported");
    if (Now().kind == Kind::kName && Peek().kind == Kind::kOperator && Peek().text == "=") {
      std::string name = Now().text;
      Next();
      Next();
      AISP_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      call->named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call->named.empty()) return Fail("a positional argument follows a named one");
      AISP_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      call->items.push_back(std::move(value));
    }
    if (!SkipOp(",")) break;
  }
  return ExpectOp(")");
}

Result<std::string> ExpressionParser::DottedName() {
  AISP_ASSIGN_OR_RETURN(std::string name, ExpectName());
  while (SkipOp(".")) {
    AISP_ASSIGN_OR_RETURN(const std::string part, ExpectName());
    name += "." + part;
  }
  return name;
}

Result<ExprPtr> ExpressionParser::Filter(ExprPtr operand) {
  ExprPtr e = New(Expr::Kind::kFilter, Now().line);
  e->a = std::move(operand);
  AISP_ASSIGN_OR_RETURN(e->name, DottedName());
  if (IsOp("(")) AISP_RETURN_IF_ERROR(Arguments(e.get()));
  return Done(std::move(e));
}

bool ExpressionParser::StartsTestArgument() const {
  switch (Now().kind) {
    case Kind::kName:
      return !IsName("else") && !IsName("or") && !IsName("and") && !IsName("if") && !IsName("is");
    case Kind::kString:
    case Kind::kInteger:
    case Kind::kFloat:
      return true;
    default:
      return IsOp("[") || IsOp("{");
  }
}

Result<ExprPtr> ExpressionParser::Test(ExprPtr operand) {
  ExprPtr e = New(Expr::Kind::kTest, Now().line);
  Next();
  const bool negated = SkipName("not");
  e->a = std::move(operand);
  AISP_ASSIGN_OR_RETURN(e->name, DottedName());
  if (IsOp("(")) {
    AISP_RETURN_IF_ERROR(Arguments(e.get()));
  } else if (StartsTestArgument() && !(IsName("not") || IsName("in"))) {
    AISP_ASSIGN_OR_RETURN(ExprPtr argument, Primary());
    AISP_ASSIGN_OR_RETURN(argument, Postfix(std::move(argument), false));
    e->items.push_back(std::move(argument));
  }
  const int line = e->line;
  AISP_ASSIGN_OR_RETURN(e, Done(std::move(e)));
  if (!negated) return e;
  return Binary(Expr::Kind::kNot, line, "not", std::move(e), nullptr);
}

Result<ExprPtr> ExpressionParser::LiteralOf(Value value) {
  ExprPtr e = New(Expr::Kind::kLiteral, Now().line);
  e->value = std::move(value);
  return e;
}

Result<ExprPtr> ExpressionParser::Primary() {
  const Token token = Now();
  switch (token.kind) {
    case Kind::kName: {
      Next();
      if (token.text == "true" || token.text == "True") return LiteralOf(true);
      if (token.text == "false" || token.text == "False") return LiteralOf(false);
      if (token.text == "none" || token.text == "None") return LiteralOf(Value());
      ExprPtr e = New(Expr::Kind::kName, token.line);
      e->name = token.text;
      return e;
    }
    case Kind::kString: {
      std::string s;
      for (; Now().kind == Kind::kString; Next()) s += Now().text;
      return LiteralOf(Value(std::move(s)));
    }
    case Kind::kInteger: {
      auto i = ParseInt(token.text);
      if (!i) return Fail(i.error().message);
      Next();
      return LiteralOf(Value(*i));
    }
    case Kind::kFloat: {
      auto d = ParseDouble(token.text);
      if (!d) return Fail(d.error().message);
      Next();
      return LiteralOf(Value(*d));
    }
    default:
      break;
  }
  if (IsOp("(")) return Parenthesized();
  if (IsOp("[")) return ListLiteral();
  if (IsOp("{")) return DictLiteral();
  return Fail("expected an expression before " + Shown());
}

Result<ExprPtr> ExpressionParser::Parenthesized() {
  Next();
  AISP_ASSIGN_OR_RETURN(ExprPtr e, TupleUntil(")"));
  AISP_RETURN_IF_ERROR(ExpectOp(")"));
  return e;
}

Result<ExprPtr> ExpressionParser::TupleUntil(std::string_view end, bool with_condition) {
  ExprPtr tuple = New(Expr::Kind::kTuple, Now().line);
  bool comma = false;
  while (!IsOp(end) && Now().kind != Kind::kBlockEnd && Now().kind != Kind::kVariableEnd &&
         !IsName("in")) {
    AISP_ASSIGN_OR_RETURN(ExprPtr item, Expression(with_condition));
    tuple->items.push_back(std::move(item));
    if (!SkipOp(",")) break;
    comma = true;
  }
  if (tuple->items.size() == 1 && !comma) return std::move(tuple->items[0]);
  if (tuple->items.empty() && end != ")") return Fail("expected an expression before " + Shown());
  return Done(std::move(tuple));
}

Result<ExprPtr> ExpressionParser::ListLiteral() {
  ExprPtr e = New(Expr::Kind::kList, Now().line);
  Next();
  while (!IsOp("]")) {
    AISP_ASSIGN_OR_RETURN(ExprPtr item, Expression());
    e->items.push_back(std::move(item));
    if (!SkipOp(",")) break;
  }
  AISP_RETURN_IF_ERROR(ExpectOp("]"));
  return Done(std::move(e));
}

Result<ExprPtr> ExpressionParser::DictLiteral() {
  ExprPtr e = New(Expr::Kind::kDict, Now().line);
  Next();
  while (!IsOp("}")) {
    AISP_ASSIGN_OR_RETURN(ExprPtr key, Expression());
    AISP_RETURN_IF_ERROR(ExpectOp(":"));
    AISP_ASSIGN_OR_RETURN(ExprPtr value, Expression());
    e->items.push_back(std::move(key));
    e->items.push_back(std::move(value));
    if (!SkipOp(",")) break;
  }
  AISP_RETURN_IF_ERROR(ExpectOp("}"));
  return Done(std::move(e));
}

}  // namespace aisp::jinja
