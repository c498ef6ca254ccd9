// Parses the expressions of a Jinja template by recursive descent over its tokens
// (jinja2/parser.py). Base of the statement parser. One use, one thread.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/strings.h"
#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace aisp::jinja {

class ExpressionParser {
 protected:
  using Kind = Token::Kind;

  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Now() const { return tokens_[at_]; }
  const Token& Peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool IsOp(std::string_view op) const { return Now().kind == Kind::kOperator && Now().text == op; }
  bool IsName(std::string_view name) const {
    return Now().kind == Kind::kName && Now().text == name;
  }
  bool SkipOp(std::string_view op) {
    if (!IsOp(op)) return false;
    Next();
    return true;
  }
  bool SkipName(std::string_view name) {
    if (!IsName(name)) return false;
    Next();
    return true;
  }
  tl::unexpected<Error> Fail(std::string_view message) const {
    return TemplateError(Now().line, message);
  }
  std::string Shown() const {
    switch (Now().kind) {
      case Kind::kEnd:
        return "the end of the template";
      case Kind::kBlockEnd:
        return "'%}'";
      case Kind::kVariableEnd:
        return "'}}'";
      default:
        return "'" + Excerpt(Now().text) + "'";
    }
  }
  Status ExpectOp(std::string_view op) {
    if (!SkipOp(op)) return Fail("expected '" + std::string(op) + "' before " + Shown());
    return {};
  }
  Result<std::string> ExpectName() {
    if (Now().kind != Kind::kName) return Fail("expected a name before " + Shown());
    std::string name = Now().text;
    Next();
    return name;
  }
  Status ExpectBlockEnd() {
    if (Now().kind != Kind::kBlockEnd) return Fail("expected '%}' before " + Shown());
    Next();
    return {};
  }

  ExprPtr New(Expr::Kind kind, int line) const;
  // Sets the depth of a finished node; an error if it is too deep.
  Result<ExprPtr> Done(ExprPtr e) const;

  // Parses an expression; INVALID_ARGUMENT with the line if there is none. Without `with_condition`
  // it ends before "if".
  Result<ExprPtr> Expression(bool with_condition = true);
  // "a" is a, "a, b" and "a," are tuples, "" before `end` is the empty tuple.
  Result<ExprPtr> TupleUntil(std::string_view end, bool with_condition = true);
  // Parses a filter after "|", applied to `operand`.
  Result<ExprPtr> Filter(ExprPtr operand);

  int level_ = 0;

 private:
  // From the loosest to the tightest binding.
  Result<ExprPtr> Or();
  Result<ExprPtr> And();
  Result<ExprPtr> Not();
  Result<ExprPtr> Compare();
  Result<ExprPtr> Sum();
  Result<ExprPtr> Concat();
  Result<ExprPtr> Product();
  Result<ExprPtr> Power();
  Result<ExprPtr> Unary(bool with_filter);
  Result<ExprPtr> Postfix(ExprPtr e, bool with_filter);
  Result<ExprPtr> Primary();
  // A left-associative level: `next` operands with any of `ops` between.
  template <typename Operand>
  Result<ExprPtr> LeftAssociative(std::initializer_list<std::string_view> ops, Operand next);
  Result<ExprPtr> Binary(Expr::Kind kind, int line, std::string name, ExprPtr a, ExprPtr b) const;

  Result<ExprPtr> Subscript(ExprPtr target);
  Status Arguments(Expr* call);
  // "a.b" as one name.
  Result<std::string> DottedName();
  bool StartsTestArgument() const;
  Result<ExprPtr> Test(ExprPtr operand);
  Result<ExprPtr> LiteralOf(Value value);
  Result<ExprPtr> Parenthesized();
  Result<ExprPtr> ListLiteral();
  Result<ExprPtr> DictLiteral();

  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace aisp::jinja
