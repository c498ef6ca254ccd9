#include "text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "common/strings.h"
#include "text/jinja_expressions.h"
#include "text/jinja_lexer.h"

namespace aisp::jinja {
namespace {

class Parser : ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Result<Block> Template() {
    AISP_ASSIGN_OR_RETURN(Block block, Body({}));
    return block;
  }

 private:
  // Parses statements up to a block tag named in `ends`; its name is then the current token.
  Result<Block> Body(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(&level_);
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

  // Consumes the end of tag `name`.
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
        const Nesting nesting(&level_);
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

  // A body that is its own function: break and continue cannot leave it.
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

  // {% generation %} marks assistant text for training; {% autoescape %} has no effect on plain
  // output.
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
