// PlanEndings: completes an answer that follows an AnswerPlan in few tokens: closes thinking,
// finishes a literal, and ends arguments and a body as their constraints say. For constrain/ only.
// Immutable except for lazily computed values; any thread.
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

  // `tables` outlives this object.
  explicit PlanEndings(const PlanTables* tables) : t_(*tables) {}

  // All functions: nullopt when no ending of at most `limit` bytes is known, or none for a tool
  // that may still be called.
  //
  // Free text is complete, and grows when a call opens.
  std::optional<Ending> OfFree(size_t limit) const;
  // Inside thinking, with `matched` bytes of its end marker.
  std::optional<Ending> OfThinking(size_t matched, size_t limit) const;
  // Alternatives from `offset` on, and a parallel body or null.
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
    std::vector<std::optional<Ending>> arguments;  // by tool: the shortest arguments
    std::optional<Ending> body;
    std::vector<TokenId> tail;  // after the last arguments
    bool tail_known = false;
    size_t opening = 0;    // tokens of the longest path through a call, from free text
    size_t another = 0;    // the same from the end of a call
    bool known = true;     // every tool has a known ending
    bool decides = false;  // one token may end arguments and begin another call
    std::vector<TokenId> openers;
  };
  const Found& Find() const;
  void FindCalls(Found* out) const;
  bool MayBeginAnother(const PlanTables::Crossing& crossing) const;
  // Tokens to the end of a call of this tool; nullopt when unknown.
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
