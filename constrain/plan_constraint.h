// PlanConstraint: an answer of several constrained parts: thinking up to a marker, free text until
// the model opens a call, calls whose arguments follow a schema each, or a constrained body, with
// literal text in between. Immutable; the parts lock themselves.
//
//   thinking? -> free text -> trigger -> call (separator call)* close -> end     tool_choice auto
//   thinking? -> call (separator call)* close -> end                  required, or a named tool
//   thinking? -> body -> end                                          response_format and the like
//   thinking? -> body, or call (separator call)* close -> end         both, tool_choice auto
//
// A body and the texts that lead elsewhere are followed in parallel from their common start. When
// such a text is complete (up to a call's arguments) it wins, even if the body could continue the
// same way, so that the answer can be parsed.
//
// Markers that are control tokens count as their text; where one fits, it is the only continuation
// except for a body.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "constrain/constraint.h"

namespace aisp {

struct AnswerPlan {
  enum class Then : uint8_t { kFree, kCalls, kBody };
  struct Tool {
    std::string name;                       // as spelled between `before` and `middle`
    std::shared_ptr<Constraint> arguments;  // texts that end with `arguments_end`
  };

  // Thinking. The answer begins inside it or with `think_open`; think_close "": no thinking.
  std::string think_open, think_close;
  bool think_is_open = false;
  std::string after_thinking;  // optional text before the first call
  int64_t think_budget = -1;   // tokens before think_close is forced; -1: no limit

  Then then = Then::kFree;
  std::shared_ptr<Constraint> body;  // kBody; with `tools`, calls are allowed instead
  std::string body_open;             // text before the body
  // A call is `before` NAME `middle` ARGUMENTS `after`; `open` precedes the first, `close` follows
  // the last. `trigger`, a prefix of open + before, opens a call in free text.
  std::vector<Tool> tools;
  std::string open, before, middle, after, separator, close;
  char arguments_end = '}';
  std::string trigger;
  bool trigger_at_start = false;  // only at the start of the answer
  bool parallel = true;           // more than one call
  // Control tokens that may be written, with their spelling. `free_markers`: also in free text,
  // where they start neither a call nor thinking.
  bool free_markers = false;
  std::vector<std::pair<TokenId, std::string>> markers;
};

// INVALID_ARGUMENT for an inconsistent plan: no tools although calls are required, an empty
// trigger.
Result<std::shared_ptr<Constraint>> MakePlanConstraint(AnswerPlan plan,
                                                       std::shared_ptr<const TokenTrie> trie);

}  // namespace aisp
