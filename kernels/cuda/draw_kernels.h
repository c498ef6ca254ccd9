// The launches behind TokenDrawer. Three kernels: edit (rows with penalties, biases or bans get a copy of their logits with the
// edits applied), scan (slices of each row: greatest score, greatest score plus noise, whether all is finite), finish (one block
// a row: puts the slices together; a row with top_k, top_p or min_p is decided here).
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/ops.h"

namespace aisp::cuda {

inline constexpr int32_t kDrawSlices = 16;

// What a slice of a row contributes.
struct DrawSlice {
  float max_score = 0;  // after edits, before the temperature
  int32_t max_token = 0;
  float best = 0;  // score / temperature + noise
  int32_t best_token = 0;
  float max_logit = 0;  // of the model's own
  float sum = 0;        // of exp(logit - max_logit)
  int32_t finite = 0;
  int32_t reserved = 0;
};

struct DrawCall {
  const float* logits = nullptr;
  int64_t stride = 0;
  int32_t vocabulary = 0;
  const DrawRow* rows = nullptr;
  const TokenEdit* edits = nullptr;
  int32_t num_rows = 0;
  int32_t* slot_tokens = nullptr;
  DrawnToken* drawn = nullptr;
  float* edited = nullptr;      // [num_rows, vocabulary]
  DrawSlice* slices = nullptr;  // [num_rows, kDrawSlices]
};

Status LaunchDraw(const DrawCall& call, cudaStream_t stream);

}  // namespace aisp::cuda
