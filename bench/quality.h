// `aisp bench quality`: mean negative log-likelihood of a fixed text under a model with teacher
// forcing, to compare number formats of weights and KV. The text gives every token; nothing is
// drawn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "engine/model_executor.h"

namespace aisp {

struct QualityResult {
  int64_t tokens = 0;
  int64_t scored = 0;              // all tokens but the first of each window
  double mean_nll = 0;             // nats per token
  std::vector<TokenId> likeliest;  // most likely token at each scored position
};

// Fraction of positions where both have the same most likely token, in [0, 1].
double Agreement(const QualityResult& a, const QualityResult& b);

// Each text is cut into windows of the model's context; each window is a sequence, computed with
// `rows` tokens per step: 1 uses the decode kernels, more the prefill kernels. `rows`: at most the
// executor's slots. INVALID_ARGUMENT: nothing to score. INTERNAL: logits are not finite.
Result<QualityResult> MeasureQuality(std::span<const std::vector<TokenId>> texts, int32_t rows,
                                     ServingExecutor& executor, Device& device);

}  // namespace aisp
