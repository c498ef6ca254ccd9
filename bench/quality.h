// `aisp bench quality`: the mean negative log-likelihood of a fixed text under a model, token by
// token (teacher forcing), so that number formats of weights and KV can be compared: the text
// decides every token, nothing is drawn.
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
  int64_t scored = 0;              // all but the first of each window
  double mean_nll = 0;             // nats
  std::vector<TokenId> likeliest;  // at each scored position
};

// The share of positions at which both hold the same token likeliest, in [0, 1].
double Agreement(const QualityResult& a, const QualityResult& b);

// Each text is cut into windows of the model's context, each a sequence of its own, computed `rows`
// tokens a step: 1 goes through the kernels of decoding, more through those of prompts. `rows` is
// at most the executor's slots. INVALID_ARGUMENT: nothing to score. INTERNAL: logits that are not
// finite.
Result<QualityResult> MeasureQuality(std::span<const std::vector<TokenId>> texts, int32_t rows,
                                     ServingExecutor& executor, Device& device);

}  // namespace aisp
