// The kernels for one token (one_token.cuh) for the host: parameters of a launch, and the table of
// instances.
//
// Pure data and functions; any thread.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/stream_kernels.h"
#include "kernels/cuda/token_slots.h"

namespace aisp::cuda {

// Weight rows that are finished together.
constexpr int kTokenRows = 16;

struct OneTokenStep {
  CUtensorMap weight;             // box: 16 rows of a stage of K
  CUtensorMap block_scales;       // NVFP4: their block scales
  const float* scales = nullptr;  // [n], or [n / 8, scale_columns]: one per 8 rows x 128 of K
  const float* bias = nullptr;    // [n] or null
  const float* gain = nullptr;    // [k] of the norm in front; null without
  void* y = nullptr;
  float epsilon = 0.0f;
  int32_t n = 0;
  int32_t k = 0;
  int32_t tiles = 0;   // of kTokenRows rows
  int32_t stages = 0;  // along K
  int32_t scale_columns = 0;
  // Start of the input's slots in a set: k f32 values with a norm in front, else k / 2 pairs of 16
  // bits, bf16 for the first step.
  int32_t input_at = 0;
  Store store = Store::kBf16;
  PollTag poll;
};

struct OneTokenParams {
  OneTokenStep steps[kMaxChainSteps];
  const __nv_bfloat16* x = nullptr;  // [k of the first step]
  // Two sets of kTokenSetSlots (token_slots.h); null if unused: a single step that neither consumes
  // nor publishes.
  uint32_t* sets = nullptr;
  uint32_t* launches = nullptr;  // [CTA], with `sets`
  bool consumes = false;         // polls x in its slots
  bool publishes = false;        // publishes the last layer's outputs besides y; Store::kBf16
  int32_t count = 0;
  int32_t ring = 0;         // stages in shared memory
  int32_t input_bytes = 0;  // per consumer warp, for the token in shared memory
};

struct OneTokenKernel {
  const void* function = nullptr;  // (OneTokenParams)
  int warps = 0;                   // that multiply
  int block_k = 0;                 // of K, per warp and stage
  int stage_bytes = 0;
  int fixed_bytes = 0;  // shared memory besides ring and token, for a ring of kTokenMaxRing
  int threads = 0;

  int stage_k() const { return warps * block_k; }
};
constexpr int kTokenMaxRing = 24;
constexpr int kTokenLeastRing = 4;

OneTokenKernel OneTokenKernelOf(WeightFormat format);

}  // namespace aisp::cuda
