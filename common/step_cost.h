// StepCost: the time of a worker's step, by what it holds. Routers learn the coefficients from the
// workers' steps (router/step_time_model.h) and tell them to the workers. Plain values.
#pragma once

#include <cstdint>

#include "common/prompt_work.h"

namespace aisp {

// Contents of a step. Doubles, because predictions use averages.
struct StepShape {
  double prefill_tokens = 0;
  double prefill_context = 0;  // sum of the positions whose KV the prefill rows read
  double decode_rows = 0;
  double decode_context = 0;  // the same for decode rows
};

// Fitted coefficients in ms, never negative.
struct StepCost {
  struct Decode {
    double base_ms = 2.0;
    double per_row_ms = 0.05;
    double per_context_ms = 1e-5;
  } decode;
  struct Prefill {
    double base_ms = 2.0;
    double per_token_ms = 0.05;
    double per_prefill_context_ms = 1e-6;
    double per_row_ms = 0.05;
    double per_context_ms = 1e-5;
  } prefill;

  double StepMs(const StepShape& shape) const {
    if (shape.prefill_tokens <= 0) {
      return decode.base_ms + decode.per_row_ms * shape.decode_rows +
             decode.per_context_ms * shape.decode_context;
    }
    return prefill.base_ms + prefill.per_token_ms * shape.prefill_tokens +
           prefill.per_prefill_context_ms * shape.prefill_context +
           prefill.per_row_ms * shape.decode_rows + prefill.per_context_ms * shape.decode_context;
  }
  // Total time in ms of the steps that compute `work` in chunks of at most `chunk` tokens, each
  // together with the decode rows of `beside`.
  double PromptMs(const PromptWork& work, int32_t chunk, const StepShape& beside) const;
};

}  // namespace aisp
