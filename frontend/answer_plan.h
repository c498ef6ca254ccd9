// AnswerPlans: turn a request's tools and thinking options into a text that travels with the
// request, and that text into the plan that constrains decoding. Pure, except for schema
// compilation, which the caller supplies.
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
  bool close_ends = false;  // closing thinking is an EOS token, so the marker is written as text
  const v1::Constraint* body = nullptr;  // constraint after thinking; null or NONE: free
};

// Of kind CALLS; NONE when the answer is free. INVALID_ARGUMENT names what is unsupported.
Result<v1::Constraint> WritePlan(const PlanRequest& request);

// Callbacks that the caller supplies to read a plan.
using CompilePart = std::function<Result<std::shared_ptr<Constraint>>(const v1::Constraint&)>;

struct PlanParts {
  CompilePart compile;
  // Called when a format spells arguments in another way than JSON.
  std::function<std::shared_ptr<const SpelledTokens>()> spelled;
};

// Reads a text from WritePlan; INVALID_ARGUMENT for any other text.
Result<AnswerPlan> ReadPlan(const std::string& text, const Tokenizer& tokenizer,
                            const PlanParts& parts);

}  // namespace aisp
