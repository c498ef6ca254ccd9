// PlanEndings: how an answer that follows an AnswerPlan can be made whole in few tokens: thinking
// is closed, a literal is finished, arguments and a body end as their constraints say. Inside
// constrain/ only. Immutable but for what is found out once, when first asked for; any thread.
#pragma once

#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "constrain/plan_tables.h"

namespace aisp {

class PlanEndings {
 public:
  using Ending = Matcher::Ending;

  // `tables` outlives this.
  explicit PlanEndings(const PlanTables* tables) : t_(*tables) {}

  // All: absent when no ending of at most `limit` bytes is known, also when none is known for some
  // tool that may still be called.
  //
  // Free text: it is whole, and grows by a call that opens.
  std::optional<Ending> OfFree(size_t limit) const;
  // Thinking of whose end `matched` bytes are there.
  std::optional<Ending> OfThinking(size_t matched, size_t limit) const;
  // Alternatives that stand side by side from `offset` on, and a body beside them or null.
  struct Alternatives {
    const Literals* list;
    size_t low, high, offset;
    Matcher* body;
  };
  std::optional<Ending> OfLiterals(const Alternatives& at, size_t limit) const;
  std::optional<Ending> OfArguments(Matcher* arguments, size_t limit) const;

  // Tokens by which free text may open a call or thinking.
  const std::vector<TokenId>& openers() const;

 private:
  struct Found {
    std::vector<std::optional<Ending>> arguments;  // by tool: the shortest
    std::optional<Ending> body;
    std::vector<TokenId> tail;  // behind the last arguments
    bool tail_known = false;
    size_t opening = 0;    // tokens of the longest way through a call, from free text
    size_t another = 0;    // ... from the end of a call
    bool known = true;     // every tool can be ended
    bool decides = false;  // one token may end arguments and begin another call
    std::vector<TokenId> openers;
  };
  const Found& Find() const;
  void FindCalls(Found* out) const;
  bool MayBeginAnother(const PlanTables::Crossing& crossing) const;
  // In tokens, to the end of a call of this tool; absent when it is not known.
  std::optional<size_t> Through(const Found& found, std::string_view before, size_t tool) const;
  size_t LongestCut(std::string_view text) const;
  std::optional<Ending> AfterLiteral(const Literal& literal, size_t limit) const;
  std::optional<Ending> AfterThinking(size_t limit) const;
  std::optional<Ending> Behind(std::string_view text, std::optional<Ending> ending) const;

  const PlanTables& t_;
  mutable std::once_flag once_;
  mutable Found found_;
};

}  // namespace aisp
