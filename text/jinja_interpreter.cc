#include "text/jinja_interpreter.h"

#include <algorithm>

#include "text/jinja_lexer.h"

namespace aisp::jinja {

namespace {

constexpr size_t kNamesPerStep = 16;  // names compared that count as one step

}  // namespace

const Value* Args::Find(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

class Interpreter::Macro final : public Value::Object {
 public:
  Macro(const Stmt* s, std::string n, std::shared_ptr<Scope> sc)
      : stmt(s), name(std::move(n)), scope(std::move(sc)) {}
  std::string_view TypeName() const override { return "Macro"; }
  const Stmt* stmt;
  std::string name;
  std::shared_ptr<Scope> scope;
};

void Interpreter::Scope::Set(const std::string& name, Value value) {
  for (auto& [key, old] : variables) {
    if (key == name) {
      old = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Interpreter::Interpreter(const Value::Map& context, const RenderOptions& options)
    : context_(context),
      options_(options),
      globals_(MakeGlobals()),
      scope_(std::make_shared<Scope>()) {}

Interpreter::~Interpreter() {
  for (const auto& scope : captured_) scope->variables.clear();
  for (const auto& ns : namespaces_) ns->members.Clear();
}

tl::unexpected<Error> Interpreter::Fail(std::string_view message) const {
  size_t size = std::min(message.size(), kMaxErrorBytes);
  // Do not cut a character.
  while (size > 0 && size < message.size() && (message[size] & 0xC0) == 0x80) --size;
  return TemplateError(line_, message.substr(0, size));
}

Status Interpreter::Charge(uint64_t steps) {
  steps_ += steps;
  if (steps_ <= options_.max_steps) return {};
  return ResourceExhausted("chat template, line " + std::to_string(line_) + ": more than " +
                           std::to_string(options_.max_steps) + " steps");
}

Status Interpreter::ChargeSearch(size_t text_bytes, size_t what_bytes) {
  // FindText is linear, with a factor that grows for needles up to 256 bytes.
  return Charge(text_bytes / kBytesPerStep * (1 + std::min<size_t>(what_bytes, 256) / 32) +
                what_bytes / kBytesPerStep);
}

Status Interpreter::ChargeKeys(const Value::Map& map) {
  AISP_RETURN_IF_ERROR(Charge(map.size()));
  size_t bytes = 0;
  for (const auto& entry : map) bytes += entry.first.size();
  return ChargeBytes(bytes);
}

Status Interpreter::Fits(uint64_t bytes) const {
  if (bytes <= options_.max_output_bytes) return {};
  return ResourceExhausted("chat template, line " + std::to_string(line_) + ": a text of " +
                           std::to_string(bytes) + " bytes; the limit is " +
                           std::to_string(options_.max_output_bytes));
}

Result<Value> Interpreter::Checked(Value value) {
  if (value.IsString()) {
    AISP_RETURN_IF_ERROR(Fits(value.AsString().size()));
    AISP_RETURN_IF_ERROR(ChargeBytes(value.AsString().size()));
  }
  if (value.IsList()) AISP_RETURN_IF_ERROR(Charge(value.AsList().size()));
  if (value.IsMap()) AISP_RETURN_IF_ERROR(Charge(value.AsMap().size()));
  if (value.depth() > kMaxValueDepth)
    return Fail("value nested deeper than " + std::to_string(kMaxValueDepth));
  return value;
}

std::shared_ptr<Namespace> Interpreter::NewNamespace() {
  namespaces_.push_back(std::make_shared<Namespace>());
  return namespaces_.back();
}

Status Interpreter::EnterScope(std::shared_ptr<Scope> parent) {
  // Loops that recurse through macros may nest scopes without nesting evaluations.
  if (parent->depth >= kMaxEvalDepth)
    return Fail("scopes nested deeper than " + std::to_string(kMaxEvalDepth));
  auto scope = std::make_shared<Scope>();
  scope->depth = parent->depth + 1;
  scope->parent = std::move(parent);
  scope_ = std::move(scope);
  return {};
}

Result<std::string> Interpreter::Run(const Block& block) {
  std::string out;
  out_ = &out;
  AISP_RETURN_IF_ERROR(Exec(block));
  return out;
}

Status Interpreter::Write(std::string_view text) {
  AISP_RETURN_IF_ERROR(ChargeBytes(text.size()));
  if (out_->size() + text.size() > options_.max_output_bytes) {
    return ResourceExhausted("chat template, line " + std::to_string(line_) + ": more than " +
                             std::to_string(options_.max_output_bytes) + " bytes of output");
  }
  out_->append(text);
  return {};
}

Result<std::string> Interpreter::Capture(const Block& block) {
  const std::shared_ptr<Scope> outer_scope = scope_;
  AISP_RETURN_IF_ERROR(EnterScope(outer_scope));
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  const auto flow = Exec(block);
  scope_ = outer_scope;
  out_ = outer;
  if (!flow) return tl::unexpected(flow.error());
  return text;
}

Result<Interpreter::Flow> Interpreter::Exec(const Block& block) {
  const Nesting nesting(&depth_);
  if (depth_ > kMaxEvalDepth) return Fail("nested deeper than " + std::to_string(kMaxEvalDepth));
  for (const auto& statement : block) {
    AISP_ASSIGN_OR_RETURN(const Flow flow, ExecOne(*statement));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

// Long: one case for each kind of statement.
Result<Interpreter::Flow> Interpreter::ExecOne(const Stmt& s) {
  line_ = s.line;
  AISP_RETURN_IF_ERROR(Charge(1));
  switch (s.kind) {
    case Stmt::Kind::kData:
      AISP_RETURN_IF_ERROR(Write(s.text));
      break;
    case Stmt::Kind::kOutput: {
      AISP_ASSIGN_OR_RETURN(const Value value, Eval(*s.value));
      if (value.IsString()) {
        AISP_RETURN_IF_ERROR(Write(value.AsString()));
        break;
      }
      AISP_ASSIGN_OR_RETURN(const std::string text, Str(value));
      AISP_RETURN_IF_ERROR(Write(text));
      break;
    }
    case Stmt::Kind::kFor: {
      AISP_ASSIGN_OR_RETURN(const Value iterable, Eval(*s.value));
      AISP_RETURN_IF_ERROR(ExecFor(s, iterable, 0));
      break;
    }
    case Stmt::Kind::kIf:
      return ExecIf(s);
    case Stmt::Kind::kSet: {
      AISP_ASSIGN_OR_RETURN(const Value value, Eval(*s.value));
      AISP_RETURN_IF_ERROR(Assign(*s.target, value));
      break;
    }
    case Stmt::Kind::kSetBlock: {
      AISP_ASSIGN_OR_RETURN(std::string text, Capture(s.body));
      Value value(std::move(text));
      if (s.filter) {
        AISP_ASSIGN_OR_RETURN(value, EvalFilter(*s.filter, &value));
      }
      AISP_RETURN_IF_ERROR(Assign(*s.target, value));
      break;
    }
    case Stmt::Kind::kMacro:
      scope_->Set(s.text, MakeMacro(s, s.text));
      break;
    case Stmt::Kind::kCall:
      AISP_RETURN_IF_ERROR(ExecCall(s));
      break;
    case Stmt::Kind::kFilter: {
      AISP_ASSIGN_OR_RETURN(std::string text, Capture(s.body));
      const Value head(std::move(text));
      AISP_ASSIGN_OR_RETURN(const Value value, EvalFilter(*s.filter, &head));
      AISP_ASSIGN_OR_RETURN(const std::string filtered, Str(value));
      AISP_RETURN_IF_ERROR(Write(filtered));
      break;
    }
    case Stmt::Kind::kWith:
      AISP_RETURN_IF_ERROR(ExecWith(s));
      break;
    case Stmt::Kind::kScope:
      return Exec(s.body);
    case Stmt::Kind::kDo:
      AISP_RETURN_IF_ERROR(Eval(*s.value));
      break;
    case Stmt::Kind::kBreak:
      return Flow::kBreak;
    case Stmt::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Result<Interpreter::Flow> Interpreter::ExecIf(const Stmt& s) {
  for (const auto& [condition, body] : s.branches) {
    if (condition) {
      AISP_ASSIGN_OR_RETURN(const Value value, Eval(*condition));
      if (!Truthy(value)) continue;
    }
    return Exec(body);
  }
  return Flow::kNormal;
}

// Each iteration has its own scope, so variables set in the body do not outlive it.
Status Interpreter::ExecFor(const Stmt& s, const Value& iterable, int64_t depth0) {
  AISP_ASSIGN_OR_RETURN(Value::List items, Iterate(iterable));
  const std::shared_ptr<Scope> outer = scope_;
  const auto loop = std::make_shared<Loop>();
  const auto enter = [&](const Value& item) -> Status {
    AISP_RETURN_IF_ERROR(EnterScope(outer));
    return Assign(*s.target, item);
  };
  const auto run = [&]() -> Status {
    if (s.filter) {
      Value::List kept;
      for (const Value& item : items) {
        AISP_RETURN_IF_ERROR(enter(item));
        AISP_ASSIGN_OR_RETURN(const Value keep, Eval(*s.filter));
        if (Truthy(keep)) kept.push_back(item);
      }
      items = std::move(kept);
    }
    loop->items = &items;
    loop->depth0 = depth0;
    loop->recursive = s.recursive ? &s : nullptr;
    for (; loop->index0 < items.size(); ++loop->index0) {
      AISP_RETURN_IF_ERROR(Charge(1));
      AISP_RETURN_IF_ERROR(enter(items[loop->index0]));
      scope_->Set("loop", Value(std::static_pointer_cast<Value::Object>(loop)));
      AISP_ASSIGN_OR_RETURN(const Flow flow, Exec(s.body));
      if (flow == Flow::kBreak) break;
    }
    return {};
  };
  Status status = run();
  loop->items = nullptr;
  loop->changed.reset();
  scope_ = outer;
  AISP_RETURN_IF_ERROR(std::move(status));
  if (items.empty() && !s.orelse.empty()) AISP_RETURN_IF_ERROR(Exec(s.orelse));
  return {};
}

Status Interpreter::ExecCall(const Stmt& s) {
  AISP_ASSIGN_OR_RETURN(const Value callee, Eval(*s.value->a));
  AISP_ASSIGN_OR_RETURN(Args args, EvalArgs(*s.value));
  args.named.emplace_back("caller", MakeMacro(s, "caller"));
  AISP_ASSIGN_OR_RETURN(const Value value, Call(callee, args));
  AISP_ASSIGN_OR_RETURN(const std::string text, Str(value));
  return Write(text);
}

Status Interpreter::ExecWith(const Stmt& s) {
  AISP_RETURN_IF_ERROR(Charge(s.parameters.size() * s.parameters.size() / kNamesPerStep));
  std::vector<Value> values;
  for (const auto& parameter : s.parameters) {
    AISP_ASSIGN_OR_RETURN(Value value, Eval(*parameter.second));
    values.push_back(std::move(value));
  }
  const std::shared_ptr<Scope> outer = scope_;
  AISP_RETURN_IF_ERROR(EnterScope(outer));
  for (size_t i = 0; i < values.size(); ++i)
    scope_->Set(s.parameters[i].first, std::move(values[i]));
  auto flow = Exec(s.body);
  scope_ = outer;
  if (!flow) return tl::unexpected(std::move(flow).error());
  return {};
}

Status Interpreter::Assign(const Expr& target, const Value& value) {
  if (target.kind == Expr::Kind::kName) {
    AISP_RETURN_IF_ERROR(Charge(scope_->variables.size() / kNamesPerStep));
    scope_->Set(target.name, value);
    return {};
  }
  if (target.kind == Expr::Kind::kAttr) {
    AISP_ASSIGN_OR_RETURN(const Value object, Eval(*target.a));
    auto ns = object.IsObject() ? std::dynamic_pointer_cast<Namespace>(object.AsObject()) : nullptr;
    if (!ns) return Fail("cannot assign attribute '" + target.name + "' on a non-namespace object");
    ns->members.Set(target.name, value);
    return {};
  }
  AISP_ASSIGN_OR_RETURN(const Value::List items, Iterate(value));
  if (items.size() != target.items.size()) {
    return Fail("expected " + std::to_string(target.items.size()) + " values to unpack, got " +
                std::to_string(items.size()));
  }
  for (size_t i = 0; i < items.size(); ++i)
    AISP_RETURN_IF_ERROR(Assign(*target.items[i], items[i]));
  return {};
}

Value Interpreter::MakeMacro(const Stmt& s, std::string name) {
  if (captured_.empty() || captured_.back() != scope_) captured_.push_back(scope_);
  return Value(std::static_pointer_cast<Value::Object>(
      std::make_shared<Macro>(&s, std::move(name), scope_)));
}

Result<Value> Interpreter::CallMacro(const Macro& macro, const Args& args) {
  const auto& parameters = macro.stmt->parameters;
  if (args.positional.size() > parameters.size()) {
    return Fail("macro '" + macro.name + "' takes not more than " +
                std::to_string(parameters.size()) + " argument(s)");
  }
  AISP_RETURN_IF_ERROR(
      Charge(parameters.size() * (parameters.size() + args.named.size()) / kNamesPerStep));
  const Nesting nesting(&macros_);
  if (macros_ > kMaxMacroDepth)
    return Fail("macros nested deeper than " + std::to_string(kMaxMacroDepth));
  const std::shared_ptr<Scope> outer = scope_;
  AISP_RETURN_IF_ERROR(EnterScope(macro.scope));
  const std::shared_ptr<Scope> scope = scope_;
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  const int line = line_;
  const auto run = [&]() -> Status {
    for (const auto& argument : args.named) {
      const std::string& name = argument.first;
      const bool known =
          name == "caller" || std::any_of(parameters.begin(), parameters.end(),
                                          [&](const auto& p) { return p.first == name; });
      if (!known)
        return Fail("macro '" + macro.name + "' takes no keyword argument '" + name + "'");
      if (name == "caller") scope->Set(name, argument.second);
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, fallback] = parameters[i];
      if (const Value* given = args.Find(i, name)) {
        scope->Set(name, *given);
      } else if (fallback) {
        AISP_ASSIGN_OR_RETURN(Value value, Eval(*fallback));
        scope->Set(name, std::move(value));
      } else {
        scope->Set(name, Value::Undefined("parameter '" + name + "' was not provided"));
      }
    }
    auto flow = Exec(macro.stmt->body);
    if (!flow) return tl::unexpected(std::move(flow).error());
    return {};
  };
  Status status = run();
  scope_ = outer;
  out_ = outer_out;
  AISP_RETURN_IF_ERROR(std::move(status));
  line_ = line;
  return Value(std::move(text));
}

Result<Value> Interpreter::Call(const Value& callee, const Args& args) {
  if (callee.IsUndefined()) return Fail(callee.UndefinedMessage());
  if (!callee.IsObject())
    return Fail("'" + std::string(PythonTypeName(callee)) + "' object is not callable");
  Value::Object* object = callee.AsObject().get();
  if (const auto* function = dynamic_cast<const Function*>(object))
    return function->Call(*this, args);
  if (const auto* macro = dynamic_cast<const Macro*>(object)) return CallMacro(*macro, args);
  const auto* loop = dynamic_cast<const Loop*>(object);
  if (loop == nullptr)
    return Fail("'" + std::string(object->TypeName()) + "' object is not callable");
  if (loop->recursive == nullptr)
    return Fail("the loop must have the 'recursive' marker to be called");
  const Value* iterable = args.Find(0, "iterable");
  if (iterable == nullptr) return Fail("loop() needs what to iterate over");
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  Status status = ExecFor(*loop->recursive, *iterable, loop->depth0 + 1);
  out_ = outer;
  AISP_RETURN_IF_ERROR(std::move(status));
  return Value(std::move(text));
}

}  // namespace aisp::jinja
