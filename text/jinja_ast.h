// The syntax tree of a template. Built by the parser, then never changed: any thread. Every node
// knows how deep the tree below it is; the parser bounds that, so walking and destroying a tree may
// recurse.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/value.h"

namespace aisp::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kLiteral,  // value
    kName,     // name
    kList,     // items
    kTuple,    // items
    kDict,     // items: key, value, key, value, ...
    kUnary,    // name: "-" or "+"; a
    kBinary,   // name: "+", "-", "*", "/", "//", "%", "**"; a, b
    kConcat,   // items, joined as strings
    kCompare,  // a, then items[i] compared by ops[i], chained
    kAnd,      // a, b
    kOr,       // a, b
    kNot,      // a
    kCond,     // a if b else c (c may be null)
    kAttr,     // a.name
    kItem,     // a[b]
    kSlice,    // a[items[0]:items[1]:items[2]], each may be null
    kCall,     // a(items, named)
    kFilter,   // a | name(items, named); a is null at the head of a filter block
    kTest,     // a is name(items)
  };
  Kind kind = Kind::kLiteral;
  int line = 0;
  int depth = 1;
  std::string name;
  Value value;
  ExprPtr a, b, c;
  std::vector<ExprPtr> items;
  std::vector<std::string> ops;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct Stmt;
using Block = std::vector<std::unique_ptr<Stmt>>;

struct Stmt {
  enum class Kind {
    kData,      // text
    kOutput,    // value
    kFor,       // for target in value [if filter]: body, orelse; `recursive`
    kIf,        // branches: condition (null for else) and block
    kSet,       // target = value
    kSetBlock,  // target = what body renders, through `filter` when set
    kMacro,     // name(parameters): body
    kCall,      // value (a call) with body as its caller(parameters)
    kFilter,    // body through `filter`
    kWith,      // parameters, each with its value: body
    kScope,     // body as it is
    kDo,        // value, for its effect
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kData;
  int line = 0;
  std::string text;  // data or name
  ExprPtr target;    // kName, kTuple of targets, or kAttr of a name (a namespace's member)
  ExprPtr value;
  ExprPtr filter;
  bool recursive = false;
  Block body;
  Block orelse;
  std::vector<std::pair<ExprPtr, Block>> branches;
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // with their defaults, or null
};

// Counts the recursion depth of the parser or interpreter while it exists.
class Nesting {
 public:
  explicit Nesting(int* depth) : depth_(depth) { ++*depth_; }
  ~Nesting() { --*depth_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  int* depth_;
};

}  // namespace aisp::jinja
