// The kernels for a few tokens (few_tokens.cuh) for the host: parameters of a launch, and the table
// of instances.
//
// Pure data and functions; any thread.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/one_token_kernels.h"
#include "kernels/cuda/token_slots.h"

namespace aisp::cuda {

constexpr int kFewTokens = 8;  // maximum

struct FewTokensStep {
  CUtensorMap weight;             // box: 16 rows of a stage of K
  const float* scales = nullptr;  // [n], FP8
  const float* bias = nullptr;    // [n] or null
  const float* gain = nullptr;    // [k] of the norm in front; null without
  void* y = nullptr;
  int64_t y_stride = 0;
  float epsilon = 0.0f;
  int32_t n = 0;
  int32_t k = 0;
  int32_t tiles = 0;   // of kTokenRows rows
  int32_t stages = 0;  // along K
  // Start of the input's slots in a set: four words per 32 of K and lane, in fragment order; then,
  // with a norm in front, sums of squares [k / 16][kFewTokens].
  int32_t input_at = 0;
  Store store = Store::kBf16;
  PollTag poll;
};

struct FewTokensParams {
  FewTokensStep steps[kMaxChainSteps];
  const __nv_bfloat16* x = nullptr;  // [rows, k of the first step]
  uint32_t* sets = nullptr;          // two of kFewTokensSetSlots, used alternately
  uint32_t* launches = nullptr;      // [CTA]
  int32_t count = 0;
  int32_t rows = 0;
};

struct FewTokensKernel {
  const void* function = nullptr;  // (FewTokensParams)
  int warps = 0;                   // that multiply
  int block_k = 0;                 // of K, per warp and stage
  int shared_bytes = 0;
  int threads = 0;

  int stage_k() const { return warps * block_k; }
};

// kBf16 or kFp8.
FewTokensKernel FewTokensKernelOf(WeightFormat format);

}  // namespace aisp::cuda
