#include "common/step_cost.h"

#include <algorithm>
#include <cmath>

namespace aisp {

double StepCost::PromptMs(const PromptWork& work, int32_t chunk, const StepShape& beside) const {
  if (work.tokens <= 0) return 0;
  const auto tokens = static_cast<double>(work.tokens);
  const double steps = std::ceil(tokens / std::max(1, chunk));
  StepShape mean = beside;
  mean.prefill_tokens = tokens / steps;
  mean.prefill_context = static_cast<double>(work.context) / steps;
  return steps * StepMs(mean);
}

}  // namespace aisp
