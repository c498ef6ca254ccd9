// The table of kernels that run several layers in one launch (chain.cuh), for the host.
//
// Pure data and functions; any thread.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/stream_kernels.h"

namespace aisp::cuda {

struct ChainStepParams {
  CUtensorMap weight;
  CUtensorMap input;
  StreamParams p;  // without partials and counters
  // For kAccumulateF32 followed by a norm: the next layer's input is y * gain (bf16, f16 for FP8
  // weights), and the sum of squares per tile of y and token is stored for that layer. Null
  // without.
  const float* gain = nullptr;      // [n]
  __nv_bfloat16* normed = nullptr;  // [rows, n], 16-bit values
  float* squares = nullptr;         // [tiles of n][kernel.tokens]
  const float* input_squares =
      nullptr;  // the same for this step's input; null without a norm in front
  float epsilon = 0.0f;
  uint32_t input_ready =
      0;  // value of the previous step's counter when all of its output is written
  uint32_t most_ctas = ~0u;  // CTAs that may share the step
};

// A step of a chain with LoRA adapters. A layer with adapters has two steps: its sums v = x down^T,
// for all adapters side by side, where each row keeps its own adapter's; then the layer itself,
// whose K is extended by v (input) and up (weight).
struct AdaptedStepParams : ChainStepParams {
  CUtensorMap up;               // [n, width], bf16
  CUtensorMap v;                // [rows, width], bf16
  int32_t own_units = 0;        // part of p.k_units; the rest belongs to `up` and `v`
  uint32_t v_ready = 0;         // value of the previous step's counter when v is complete
  int32_t input_step = -1;      // stores this step's input; -1: it existed before the chain
  int32_t adapter_columns = 0;  // of v, per adapter; 0: not a step of such sums
  const int32_t* adapter_of_row = nullptr;  // [rows], with adapter_columns
};

template <class StepT, int kMostStepsV>
struct ChainParamsOf {
  using Step = StepT;
  static constexpr int kMostSteps = kMostStepsV;
  static constexpr bool kAdapted = std::is_same_v<StepT, AdaptedStepParams>;
  StepT steps[kMostStepsV];
  int32_t count = 0;
  // Between launches all slots of `parts` hold kChainNoSum, and all counters are zero.
  float* parts = nullptr;        // [CTAs][2][kernel.rows * kernel.tokens]; twice that with adapters
  int64_t parts_of_step = 0;     // elements of one set, with adapters
  uint32_t* counters = nullptr;  // [kMostSteps + 1]: one per step, then one of CTAs that have ended
};
using ChainParams = ChainParamsOf<ChainStepParams, kMaxChainSteps>;
using AdaptedChainParams = ChainParamsOf<AdaptedStepParams, 2 * kMaxChainSteps>;

// No sum has these bits: arithmetic produces the NaN 0x7fffffff.
constexpr uint32_t kChainNoSum = 0xffffffffu;

// By ascending tokens. `function` takes a ChainParams, those for adapters an AdaptedChainParams.
std::span<const StreamKernel> Bf16ChainKernels();
std::span<const StreamKernel> AdaptedBf16ChainKernels();
std::span<const StreamKernel> Fp8ChainKernels();
std::span<const StreamKernel> Fp8BlockChainKernels();
std::span<const StreamKernel> Nvfp4ChainKernels();

}  // namespace aisp::cuda
