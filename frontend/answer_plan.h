// AnswerPlans: from what a request says about tools and thinking to what its answer may look like,
// as text that travels with the request, and back to what guides the draws. Pure but for the
// compilation of schemas, which the caller brings.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "answer/format.h"
#include "api/tools.h"
#include "common.pb.h"
#include "common/result.h"
#include "constrain/plan_constraint.h"
#include "frontend/spelled_arguments.h"
#include "text/tokenizer.h"

namespace aisp {

struct PlanRequest {
  const ToolOptions* tools = nullptr;
  const CallFormat* calls = nullptr;   // null: no calls
  const ThinkFormat* think = nullptr;  // null: no thinking
  bool in_thinking = false;
  std::optional<uint32_t> think_budget;
  bool close_ends =
      false;  // the token that closes thinking ends answers: it is spelled out instead
  const v1::Constraint* body = nullptr;  // of what follows thinking; null or NONE: free
};

// Of kind CALLS; NONE when the answer is free. INVALID_ARGUMENT names what cannot be had.
Result<v1::Constraint> WritePlan(const PlanRequest& request);

// What the caller brings to read a plan.
using CompilePart = std::function<Result<std::shared_ptr<Constraint>>(const v1::Constraint&)>;

struct PlanParts {
  CompilePart compile;
  // Asked for where a format spells arguments otherwise than as JSON.
  std::function<std::shared_ptr<const SpelledTokens>()> spelled;
};

// What a text of WritePlan says; INVALID_ARGUMENT for any other.
Result<AnswerPlan> ReadPlan(const std::string& text, const Tokenizer& tokenizer,
                            const PlanParts& parts);

}  // namespace aisp
