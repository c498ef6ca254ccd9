// Runs a parsed template: one Interpreter per rendering, on one thread. Semantics are those of
// jinja2 3.1's sandbox with unescaped output; templates cannot change the caller's values. Steps,
// bytes and nesting are bounded, so that an untrusted template ends with an error instead of
// hanging.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"
#include "text/chat_template.h"
#include "text/jinja_ast.h"
#include "text/value.h"

namespace aisp::jinja {

inline constexpr uint32_t kMaxValueDepth = 100;  // lists in lists, maps in maps
inline constexpr int kMaxEvalDepth = 1200;       // nested node evaluations, macro calls included
// Nested macro calls, which take more stack than a node. Python's own limit is about the same.
inline constexpr int kMaxMacroDepth = 200;
inline constexpr int64_t kMaxRange = 100'000;   // jinja2.sandbox.MAX_RANGE
inline constexpr size_t kBytesPerStep = 64;     // bytes produced or read that count as one step
inline constexpr size_t kMaxErrorBytes = 4096;  // of a message, which may quote clients' text

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at this position or of this name; null when neither is given.
  const Value* Find(size_t position, std::string_view name) const;
};

class Interpreter;

// A function that a template can call.
class Function final : public Value::Object {
 public:
  using Body = std::function<Result<Value>(Interpreter&, const Args&)>;
  // `depth`: 1 more than that of the values the body holds.
  Function(std::string name, Body body, uint32_t depth = 1)
      : name_(std::move(name)), body_(std::move(body)), depth_(depth) {}
  std::string_view TypeName() const override { return "function"; }
  uint32_t depth() const override { return depth_; }
  const std::string& name() const { return name_; }
  Result<Value> Call(Interpreter& interpreter, const Args& args) const {
    return body_(interpreter, args);
  }

 private:
  std::string name_;
  Body body_;
  uint32_t depth_;
};

// Result of namespace(): the only object whose members {% set ns.x = ... %} can change.
class Namespace final : public Value::Object {
 public:
  std::string_view TypeName() const override { return "Namespace"; }
  Value::Map members;
};

// Result of map, select and the like: has no length and can be iterated once.
class Generator final : public Value::Object {
 public:
  explicit Generator(Value::List list) : items(std::move(list)) {
    for (const Value& item : items) depth_ = std::max(depth_, item.depth() + 1);
  }
  std::string_view TypeName() const override { return "generator"; }
  uint32_t depth() const override { return depth_; }
  Value::List items;

 private:
  uint32_t depth_ = 1;
};

// `loop` inside {% for %}.
class Loop final : public Value::Object {
 public:
  std::string_view TypeName() const override { return "LoopContext"; }
  const Value::List* items = nullptr;  // valid while the loop runs
  size_t index0 = 0;
  int64_t depth0 = 0;
  const Stmt* recursive = nullptr;  // the statement, if it is recursive
  std::optional<Value> changed;     // the last argument of loop.changed()
};

class Interpreter {
 public:
  Interpreter(const Value::Map& context, const RenderOptions& options);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Result<std::string> Run(const Block& block);

  // For the builtin functions, filters, tests and methods.

  // An error at the current line.
  tl::unexpected<Error> Fail(std::string_view message) const;
  // Counts work; RESOURCE_EXHAUSTED when the limit is reached.
  Status Charge(uint64_t steps);
  Status ChargeBytes(size_t bytes) { return Charge(bytes / kBytesPerStep); }
  // Charges the worst-case work of searching a text for `what`.
  Status ChargeSearch(size_t text_bytes, size_t what_bytes);
  // Charges the work of copying a map's keys.
  Status ChargeKeys(const Value::Map& map);
  // RESOURCE_EXHAUSTED for a text longer than the output limit; called before it is built.
  Status Fits(uint64_t bytes) const;
  // Returns `value` if it is within the bounds.
  Result<Value> Checked(Value value);

  Result<std::string> Str(const Value& value);
  Result<std::string> Repr(const Value& value);
  // The items of any iterable; exhausts a generator.
  Result<Value::List> Iterate(const Value& value);
  Result<size_t> Length(const Value& value);
  bool Truthy(const Value& value) const;
  Result<bool> Equal(const Value& a, const Value& b);
  // -1, 0 or 1; an error if the values have no order.
  Result<int> Order(const Value& a, const Value& b);
  Result<bool> Contains(const Value& container, const Value& item);
  Result<Value> Arithmetic(std::string_view op, const Value& a, const Value& b);
  Result<Value> Negate(const Value& v, std::string_view op);
  Result<Value> GetAttr(const Value& object, const std::string& name);
  Result<Value> GetItem(const Value& object, const Value& key);
  Result<Value> GetSlice(const Value& object, const Value& start, const Value& stop,
                         const Value& step);
  // Looks up "a.b.0" in an item, as selectattr and map(attribute=) do.
  Result<Value> GetPath(const Value& object, const Value& path);
  Result<Value> Call(const Value& callee, const Args& args);
  Result<Value> ApplyFilter(const std::string& name, const Value& value, const Args& args);
  Result<bool> ApplyTest(const std::string& name, const Value& value, const Args& args);
  // Python's "%" formatting of a string.
  Result<std::string> PercentFormat(std::string_view format, const Value& args);
  Result<std::string> ToJson(const Value& value, const Args& args);
  const RenderOptions& options() const { return options_; }

  std::shared_ptr<Namespace> NewNamespace();

 private:
  // Variables of one block. Macros keep the scope in which they were defined.
  struct Scope {
    std::shared_ptr<Scope> parent;
    int depth = 0;  // bounded, since scopes are destroyed recursively
    std::vector<std::pair<std::string, Value>> variables;
    void Set(const std::string& name, Value value);
  };
  class Macro;
  enum class Flow { kNormal, kBreak, kContinue };

  // Makes a new scope below `parent` the current one.
  Status EnterScope(std::shared_ptr<Scope> parent);
  // Null when the name is unknown.
  const Value* Lookup(const std::string& name, size_t* seen) const;

  Result<Flow> Exec(const Block& block);
  Result<Flow> ExecOne(const Stmt& s);
  Result<Flow> ExecIf(const Stmt& s);
  Status ExecFor(const Stmt& s, const Value& iterable, int64_t depth0);
  Status ExecCall(const Stmt& s);
  Status ExecWith(const Stmt& s);
  Status Assign(const Expr& target, const Value& value);
  Status Write(std::string_view text);
  // Runs a block in a new scope and returns its output.
  Result<std::string> Capture(const Block& block);
  Result<Value> CallMacro(const Macro& macro, const Args& args);
  Value MakeMacro(const Stmt& s, std::string name);

  Result<Value> Eval(const Expr& e);
  Result<Value> EvalKind(const Expr& e);
  Result<Value> EvalName(const Expr& e);
  Result<Value> EvalCompare(const Expr& e);
  Result<Value> EvalItems(const Expr& e);
  Result<Value> EvalDict(const Expr& e);
  Result<Value> EvalSlice(const Expr& e);
  Result<Value> EvalFilter(const Expr& e, const Value* head);
  Result<Args> EvalArgs(const Expr& e);
  Result<Value> LoopAttr(const std::shared_ptr<Loop>& loop, const std::string& name);

  const Value::Map& context_;
  const RenderOptions& options_;
  Value::Map globals_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::shared_ptr<Scope>>
      captured_;  // scopes that macros hold; cleared at the end, since they form cycles
  std::vector<std::shared_ptr<Namespace>> namespaces_;  // likewise
  std::string* out_ = nullptr;
  uint64_t steps_ = 0;
  int depth_ = 0;
  int macros_ = 0;  // nested macro calls
  int line_ = 1;
};

// A number as in Python, where bools are integers.
inline double AsDouble(const Value& v) {
  if (v.IsFloat()) return v.AsFloat();
  return v.IsBool() ? (v.AsBool() ? 1.0 : 0.0) : static_cast<double>(v.AsInt());
}
inline bool IsIntegral(const Value& v) { return v.IsInt() || v.IsBool(); }
inline int64_t AsInteger(const Value& v) { return v.IsBool() ? (v.AsBool() ? 1 : 0) : v.AsInt(); }

// The builtin functions: range, namespace, dict, joiner, raise_exception, strftime_now.
Value::Map MakeGlobals();

// A method of a string, list or map as a bound function; null when there is no such method.
std::shared_ptr<Function> FindMethod(const Value& self, const std::string& name);

}  // namespace aisp::jinja
