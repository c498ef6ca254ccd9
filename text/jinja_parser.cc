#include "text/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "common/strings.h"
#include "text/jinja_lexer.h"

namespace aisp::jinja {
namespace {

using Kind = Token::Kind;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Block> Template() {
    AISP_ASSIGN_OR_RETURN(Block block, Body({}));
    return block;
  }

 private:
  // Counts the nesting of the parser's own recursion.
  class Level {
   public:
    explicit Level(int* depth) : depth_(depth) { ++*depth_; }
    ~Level() { --*depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int* depth_;
  };

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

  ExprPtr New(Expr::Kind kind, int line) const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = line;
    return e;
  }

  // Sets the depth of a finished node and refuses what is too deep.
  Result<ExprPtr> Done(ExprPtr e) const {
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
      return TemplateError(e->line,
                           "expression nested deeper than " + std::to_string(kMaxTreeDepth));
    }
    return e;
  }

  Result<ExprPtr> Binary(Expr::Kind kind, int line, std::string name, ExprPtr a, ExprPtr b) const {
    ExprPtr e = New(kind, line);
    e->name = std::move(name);
    e->a = std::move(a);
    e->b = std::move(b);
    return Done(std::move(e));
  }

  // Expressions, from the loosest to the tightest binding.

  Result<ExprPtr> Expression(bool with_condition = true) {
    const Level level(&level_);
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

  Result<ExprPtr> Or() {
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

  Result<ExprPtr> And() {
    AISP_ASSIGN_OR_RETURN(ExprPtr left, Not());
    while (IsName("and")) {
      const int line = Now().line;
      Next();
      AISP_ASSIGN_OR_RETURN(ExprPtr right, Not());
      AISP_ASSIGN_OR_RETURN(
          left, Binary(Expr::Kind::kAnd, line, "and", std::move(left), std::move(right)));
    }
    return left;
  }

  Result<ExprPtr> Not() {
    int line = Now().line;
    if (!SkipName("not")) return Compare();
    const Level level(&level_);
    if (level_ > kMaxTreeDepth)
      return Fail("expression nested deeper than " + std::to_string(kMaxTreeDepth));
    AISP_ASSIGN_OR_RETURN(ExprPtr operand, Not());
    return Binary(Expr::Kind::kNot, line, "not", std::move(operand), nullptr);
  }

  Result<ExprPtr> Compare() {
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

  // A left-associative level: `next` operands with any of `ops` between.
  template <typename Next_>
  Result<ExprPtr> LeftAssociative(std::initializer_list<std::string_view> ops, Next_ next) {
    AISP_ASSIGN_OR_RETURN(ExprPtr left, next());
    while (Now().kind == Kind::kOperator && std::count(ops.begin(), ops.end(), Now().text) != 0) {
      const int line = Now().line;
      std::string op = Now().text;
      Next();
      AISP_ASSIGN_OR_RETURN(ExprPtr right, next());
      AISP_ASSIGN_OR_RETURN(left, Binary(Expr::Kind::kBinary, line, std::move(op), std::move(left),
                                         std::move(right)));
    }
    return left;
  }

  Result<ExprPtr> Sum() {
    return LeftAssociative({"+", "-"}, [this] { return Concat(); });
  }
  Result<ExprPtr> Concat() {
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
  Result<ExprPtr> Product() {
    return LeftAssociative({"*", "/", "//", "%"}, [this] { return Power(); });
  }
  Result<ExprPtr> Power() {
    return LeftAssociative({"**"}, [this] { return Unary(true); });
  }

  Result<ExprPtr> Unary(bool with_filter) {
    const Level level(&level_);
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

  Result<ExprPtr> Postfix(ExprPtr e, bool with_filter) {
    while (true) {
      const int line = Now().line;
      if (SkipOp(".")) {
        if (Now().kind == Kind::kInteger) {
          ExprPtr index = New(Expr::Kind::kLiteral, line);
          AISP_ASSIGN_OR_RETURN(const int64_t i, ParseInt(Now().text));
          index->value = Value(i);
          Next();
          AISP_ASSIGN_OR_RETURN(
              e, Binary(Expr::Kind::kItem, line, "", std::move(e), std::move(index)));
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

  Result<ExprPtr> Subscript(ExprPtr target) {
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

  Status Arguments(Expr* call) {
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

  // "a.b" as one name.
  Result<std::string> DottedName() {
    AISP_ASSIGN_OR_RETURN(std::string name, ExpectName());
    while (SkipOp(".")) {
      AISP_ASSIGN_OR_RETURN(const std::string part, ExpectName());
      name += "." + part;
    }
    return name;
  }

  Result<ExprPtr> Filter(ExprPtr operand) {
    ExprPtr e = New(Expr::Kind::kFilter, Now().line);
    e->a = std::move(operand);
    AISP_ASSIGN_OR_RETURN(e->name, DottedName());
    if (IsOp("(")) AISP_RETURN_IF_ERROR(Arguments(e.get()));
    return Done(std::move(e));
  }

  bool StartsTestArgument() const {
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

  Result<ExprPtr> Test(ExprPtr operand) {
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

  Result<ExprPtr> LiteralOf(Value value) {
    ExprPtr e = New(Expr::Kind::kLiteral, Now().line);
    e->value = std::move(value);
    return e;
  }

  Result<ExprPtr> Primary() {
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

  Result<ExprPtr> Parenthesized() {
    Next();
    AISP_ASSIGN_OR_RETURN(ExprPtr e, TupleUntil(")"));
    AISP_RETURN_IF_ERROR(ExpectOp(")"));
    return e;
  }

  // "a" is a, "a, b" and "a," are tuples, "" before `end` is the empty tuple.
  Result<ExprPtr> TupleUntil(std::string_view end, bool with_condition = true) {
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

  Result<ExprPtr> ListLiteral() {
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

  Result<ExprPtr> DictLiteral() {
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

  // Statements.

  // Statements up to a block tag named in `ends`, whose name is then the current token.
  Result<Block> Body(std::initializer_list<std::string_view> ends) {
    const Level level(&level_);
    if (level_ > kMaxTreeDepth)
      return Fail("blocks nested deeper than " + std::to_string(kMaxTreeDepth));
    Block block;
    const int line = Now().line;
    while (Now().kind != Kind::kEnd) {
      if (Now().kind == Kind::kData) {
        auto data = NewStmt(Stmt::Kind::kData);
        data->text = Now().text;
        Next();
        block.push_back(std::move(data));
      } else if (Now().kind == Kind::kVariableBegin) {
        auto output = NewStmt(Stmt::Kind::kOutput);
        Next();
        AISP_ASSIGN_OR_RETURN(output->value, TupleUntil("}}"));
        if (Now().kind != Kind::kVariableEnd) return Fail("expected '}}' before " + Shown());
        Next();
        block.push_back(std::move(output));
      } else {
        Next();
        if (Now().kind == Kind::kName && std::count(ends.begin(), ends.end(), Now().text) != 0)
          return block;
        AISP_ASSIGN_OR_RETURN(auto statement, Statement());
        block.push_back(std::move(statement));
      }
    }
    if (ends.size() != 0)
      return TemplateError(line,
                           "block is never closed; expected '" + std::string(*ends.begin()) + "'");
    return block;
  }

  std::unique_ptr<Stmt> NewStmt(Stmt::Kind kind) const {
    auto s = std::make_unique<Stmt>();
    s->kind = kind;
    s->line = Now().line;
    return s;
  }

  Result<std::unique_ptr<Stmt>> Statement() {
    AISP_ASSIGN_OR_RETURN(const std::string name, ExpectName());
    if (name == "for") return For();
    if (name == "if") return If();
    if (name == "set") return Set();
    if (name == "macro") return Macro();
    if (name == "call") return CallBlock();
    if (name == "filter") return FilterBlock();
    if (name == "with") return With();
    if (name == "do") return Do();
    if (name == "generation" || name == "autoescape") return Scope(name);
    if (name == "break" || name == "continue") return Jump(name);
    for (const char* other : {"include", "import", "from", "extends", "block"}) {
      if (name == other) {
        return Unimplemented("chat template, line " + std::to_string(Now().line) + ": {% " + name +
                             " %} is not supported; a chat template is one file");
      }
    }
    return Fail("unknown tag '" + Excerpt(name) + "'");
  }

  // Closes a body that ended at the tag `name`.
  Status EndTag(std::string_view name) {
    Next();
    if (Now().kind != Kind::kBlockEnd)
      return Fail("expected '%}' after '" + std::string(name) + "'");
    return ExpectBlockEnd();
  }

  // A name, or several for unpacking.
  Result<ExprPtr> Target() {
    ExprPtr tuple = New(Expr::Kind::kTuple, Now().line);
    bool comma = false;
    while (Now().kind == Kind::kName || IsOp("(")) {
      if (SkipOp("(")) {
        const Level level(&level_);
        if (level_ > kMaxTreeDepth) return Fail("target nested too deeply");
        AISP_ASSIGN_OR_RETURN(ExprPtr inner, Target());
        AISP_RETURN_IF_ERROR(ExpectOp(")"));
        tuple->items.push_back(std::move(inner));
      } else {
        if (IsName("in")) break;
        ExprPtr name = New(Expr::Kind::kName, Now().line);
        AISP_ASSIGN_OR_RETURN(name->name, ExpectName());
        if (SkipOp(".")) {
          ExprPtr member = New(Expr::Kind::kAttr, name->line);
          AISP_ASSIGN_OR_RETURN(member->name, ExpectName());
          member->a = std::move(name);
          name = std::move(member);
        }
        tuple->items.push_back(std::move(name));
      }
      if (!SkipOp(",")) break;
      comma = true;
    }
    if (tuple->items.empty()) return Fail("expected a name to assign to before " + Shown());
    if (tuple->items.size() == 1 && !comma) return std::move(tuple->items[0]);
    return Done(std::move(tuple));
  }

  Result<std::unique_ptr<Stmt>> For() {
    auto s = NewStmt(Stmt::Kind::kFor);
    AISP_ASSIGN_OR_RETURN(s->target, Target());
    if (!SkipName("in")) return Fail("expected 'in' before " + Shown());
    AISP_ASSIGN_OR_RETURN(s->value, TupleUntil("recursive", /*with_condition=*/false));
    if (SkipName("if")) {
      AISP_ASSIGN_OR_RETURN(s->filter, Expression());
    }
    s->recursive = SkipName("recursive");
    AISP_RETURN_IF_ERROR(ExpectBlockEnd());
    ++loops_;
    AISP_ASSIGN_OR_RETURN(s->body, Body({"endfor", "else"}));
    --loops_;
    if (IsName("else")) {
      AISP_RETURN_IF_ERROR(EndTag("else"));
      AISP_ASSIGN_OR_RETURN(s->orelse, Body({"endfor"}));
    }
    AISP_RETURN_IF_ERROR(EndTag("endfor"));
    return s;
  }

  Result<std::unique_ptr<Stmt>> If() {
    auto s = NewStmt(Stmt::Kind::kIf);
    while (true) {
      AISP_ASSIGN_OR_RETURN(ExprPtr condition, TupleUntil("%}"));
      AISP_RETURN_IF_ERROR(ExpectBlockEnd());
      AISP_ASSIGN_OR_RETURN(Block body, Body({"endif", "elif", "else"}));
      s->branches.emplace_back(std::move(condition), std::move(body));
      if (!IsName("elif")) break;
      Next();
    }
    if (IsName("else")) {
      AISP_RETURN_IF_ERROR(EndTag("else"));
      AISP_ASSIGN_OR_RETURN(Block body, Body({"endif"}));
      s->branches.emplace_back(nullptr, std::move(body));
    }
    AISP_RETURN_IF_ERROR(EndTag("endif"));
    return s;
  }

  Result<std::unique_ptr<Stmt>> Set() {
    auto s = NewStmt(Stmt::Kind::kSet);
    AISP_ASSIGN_OR_RETURN(s->target, Target());
    if (SkipOp("=")) {
      AISP_ASSIGN_OR_RETURN(s->value, TupleUntil("%}"));
      AISP_RETURN_IF_ERROR(ExpectBlockEnd());
      return s;
    }
    s->kind = Stmt::Kind::kSetBlock;
    while (SkipOp("|")) {
      AISP_ASSIGN_OR_RETURN(s->filter, Filter(std::move(s->filter)));
    }
    AISP_RETURN_IF_ERROR(ExpectBlockEnd());
    AISP_ASSIGN_OR_RETURN(s->body, Body({"endset"}));
    AISP_RETURN_IF_ERROR(EndTag("endset"));
    return s;
  }

  Status Parameters(Stmt* s) {
    AISP_RETURN_IF_ERROR(ExpectOp("("));
    while (!IsOp(")")) {
      AISP_ASSIGN_OR_RETURN(std::string name, ExpectName());
      ExprPtr fallback;
      if (SkipOp("=")) {
        AISP_ASSIGN_OR_RETURN(fallback, Expression());
      } else if (!s->parameters.empty() && s->parameters.back().second) {
        return Fail("parameter '" + name + "' without a default follows one with a default");
      }
      s->parameters.emplace_back(std::move(name), std::move(fallback));
      if (!SkipOp(",")) break;
    }
    return ExpectOp(")");
  }

  // A body that is a function of its own: loops around it do not count for break and continue.
  Result<Block> FunctionBody(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    AISP_ASSIGN_OR_RETURN(Block body, Body({end}));
    loops_ = loops;
    AISP_RETURN_IF_ERROR(EndTag(end));
    return body;
  }

  Result<std::unique_ptr<Stmt>> Macro() {
    auto s = NewStmt(Stmt::Kind::kMacro);
    AISP_ASSIGN_OR_RETURN(s->text, ExpectName());
    AISP_RETURN_IF_ERROR(Parameters(s.get()));
    AISP_RETURN_IF_ERROR(ExpectBlockEnd());
    AISP_ASSIGN_OR_RETURN(s->body, FunctionBody("endmacro"));
    return s;
  }

  Result<std::unique_ptr<Stmt>> CallBlock() {
    auto s = NewStmt(Stmt::Kind::kCall);
    if (IsOp("(")) AISP_RETURN_IF_ERROR(Parameters(s.get()));
    AISP_ASSIGN_OR_RETURN(s->value, Expression());
    if (s->value->kind != Expr::Kind::kCall) return Fail("{% call %} needs a call");
    AISP_RETURN_IF_ERROR(ExpectBlockEnd());
    AISP_ASSIGN_OR_RETURN(s->body, FunctionBody("endcall"));
    return s;
  }

  Result<std::unique_ptr<Stmt>> FilterBlock() {
    auto s = NewStmt(Stmt::Kind::kFilter);
    do {
      AISP_ASSIGN_OR_RETURN(s->filter, Filter(std::move(s->filter)));
    } while (SkipOp("|"));
    AISP_RETURN_IF_ERROR(ExpectBlockEnd());
    AISP_ASSIGN_OR_RETURN(s->body, Body({"endfilter"}));
    AISP_RETURN_IF_ERROR(EndTag("endfilter"));
    return s;
  }

  Result<std::unique_ptr<Stmt>> With() {
    auto s = NewStmt(Stmt::Kind::kWith);
    while (Now().kind == Kind::kName) {
      AISP_ASSIGN_OR_RETURN(std::string name, ExpectName());
      AISP_RETURN_IF_ERROR(ExpectOp("="));
      AISP_ASSIGN_OR_RETURN(ExprPtr value, Expression());
      s->parameters.emplace_back(std::move(name), std::move(value));
      if (!SkipOp(",")) break;
    }
    AISP_RETURN_IF_ERROR(ExpectBlockEnd());
    AISP_ASSIGN_OR_RETURN(s->body, Body({"endwith"}));
    AISP_RETURN_IF_ERROR(EndTag("endwith"));
    return s;
  }

  Result<std::unique_ptr<Stmt>> Do() {
    auto s = NewStmt(Stmt::Kind::kDo);
    AISP_ASSIGN_OR_RETURN(s->value, TupleUntil("%}"));
    AISP_RETURN_IF_ERROR(ExpectBlockEnd());
    return s;
  }

  // {% generation %} marks what an assistant said for training; {% autoescape %} changes nothing in plain text.
  Result<std::unique_ptr<Stmt>> Scope(const std::string& name) {
    auto s = NewStmt(Stmt::Kind::kScope);
    if (name == "autoescape") {
      AISP_ASSIGN_OR_RETURN(s->value, Expression());
    }
    AISP_RETURN_IF_ERROR(ExpectBlockEnd());
    const std::string end = "end" + name;
    AISP_ASSIGN_OR_RETURN(s->body, Body({end}));
    AISP_RETURN_IF_ERROR(EndTag(end));
    return s;
  }

  Result<std::unique_ptr<Stmt>> Jump(const std::string& name) {
    auto s = NewStmt(name == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue);
    if (loops_ == 0) return Fail("'" + name + "' outside a loop");
    AISP_RETURN_IF_ERROR(ExpectBlockEnd());
    return s;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int level_ = 0;
  int loops_ = 0;
};

}  // namespace

Result<Block> ParseTemplate(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return InvalidArgument("chat template of " + std::to_string(source.size()) +
                           " bytes; the limit is " + std::to_string(kMaxTemplateBytes));
  }
  if (!IsValidUtf8(source)) return InvalidArgument("chat template is not valid UTF-8");
  AISP_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Template();
}

}  // namespace aisp::jinja
