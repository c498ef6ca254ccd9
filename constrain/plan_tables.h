// PlanTables: computed once per PlanConstraint for all sequences: the literal texts between the
// parts, and the tokens that may cross from one part to the next. Immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "constrain/marker.h"
#include "constrain/plan_constraint.h"

namespace aisp {

// A required text and where it leads. Alternatives of a list are sorted, so that common prefixes
// are adjacent.
struct Literal {
  std::string text;
  int32_t to = 0;  // a tool, or one of these
  static constexpr int32_t kEnd = -1, kAfterThinking = -2, kThinking = -3, kBody = -4;
};
using Literals = std::vector<Literal>;

struct PlanTables {
  AnswerPlan plan;
  std::shared_ptr<const TokenTrie> trie;
  // Texts that may start the answer, follow thinking, follow a trigger, and follow a call.
  Literals begin, first, triggered, next, think_close;
  Marker trigger, opened, thought;
  TokenMask any;
  // A token in which arguments may end before the token does.
  struct Crossing {
    TokenId token;
    size_t end;  // position after plan.arguments_end
  };
  std::vector<Crossing> crossings;
  // Tokens in which a marker may end before the token does.
  std::vector<TokenId> past_trigger, past_open, past_thought;

  PlanTables(AnswerPlan p, std::shared_ptr<const TokenTrie> t);

  // The answer begins outside thinking and may enter it.
  bool MayThink() const {
    return !plan.think_close.empty() && !plan.think_open.empty() && !plan.think_is_open;
  }
  // Text between thinking and a body.
  std::string BodyOpening() const {
    return plan.body_open.empty() ? "" : plan.after_thinking + plan.body_open;
  }
  // Tokenizes the text, with control tokens for their spelling; false: some byte has no token.
  bool SpellOut(std::string_view text, std::vector<TokenId>* out) const;

 private:
  void BuildLiterals();
  bool MayFollowArguments(std::string_view rest) const;
  void IndexTokens();
};

}  // namespace aisp
