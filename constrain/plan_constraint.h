// PlanConstraint: an answer that is more than one constrained text: thinking up to a marker, free
// text until the model opens a call, calls whose arguments follow a schema each, or a constrained
// body. What lies between is literal text. Immutable; the parts lock themselves.
//
//   thinking? -> free text -> trigger -> call (separator call)* close -> end     tool_choice auto
//   thinking? -> call (separator call)* close -> end                  required, or a named tool
//   thinking? -> body -> end                                         response_format and the like
//   thinking? -> body, or call (separator call)* close -> end        both, tool_choice auto
//
// A body and the texts that lead elsewhere are followed side by side from where they begin. Such a
// text that is complete (up to a call's arguments) decides, also where the body could go on alike:
// so whoever reads the answer can tell them apart.
//
// Markers that are control tokens count as the text that they are spelled with; where one fits, it
// is the only way on but for a body.
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
    std::string name;                       // as it is spelled between `before` and `middle`
    std::shared_ptr<Constraint> arguments;  // texts that end with `arguments_end`
  };

  // Thinking. The answer begins inside it, or with `think_open`; "" think_close: there is none.
  std::string think_open, think_close;
  bool think_is_open = false;
  std::string after_thinking;  // may stand before the first call
  int64_t think_budget = -1;   // tokens until think_close is forced; -1: no limit

  Then then = Then::kFree;
  std::shared_ptr<Constraint> body;  // kBody; with `tools` an answer may also be calls
  std::string body_open;             // what stands before the body
  // A call: `before` NAME `middle` ARGUMENTS `after`; the first follows `open`, the last is
  // followed by `close`. `trigger` begins open + before and is what opens a call in free text.
  std::vector<Tool> tools;
  std::string open, before, middle, after, separator, close;
  char arguments_end = '}';
  std::string trigger;
  bool trigger_at_start = false;  // only as the first text of the answer
  bool parallel = true;           // more than one call
  // Control tokens that may be written, and how they are spelled. `free_markers`: also in free text
  // where they begin neither a call nor thinking.
  bool free_markers = false;
  std::vector<std::pair<TokenId, std::string>> markers;
};

// INVALID_ARGUMENT for a plan that cannot be walked: no tools where calls must come, an empty
// trigger.
Result<std::shared_ptr<Constraint>> MakePlanConstraint(AnswerPlan plan,
                                                       std::shared_ptr<const TokenTrie> trie);

}  // namespace aisp
