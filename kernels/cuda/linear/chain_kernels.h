// The table of the kernels that run several layers in one launch (chain.cuh), as the host sees it.
//
// Pure data and functions; any thread.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>
#include <span>

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/stream_kernels.h"

namespace aisp::cuda {

struct ChainStepParams {
  CUtensorMap weight;
  CUtensorMap input;
  StreamParams p;  // without partials and counters
  // Of kAccumulateF32 with a norm behind it: the next layer's input is y * gain (bf16, f16 for FP8
  // weights), and for each tile of y and each token the sum of its squares is left for that layer.
  // Null without.
  const float* gain = nullptr;      // [n]
  __nv_bfloat16* normed = nullptr;  // [rows, n], 16-bit words
  float* squares = nullptr;         // [tiles of n][kernel.tokens]
  const float* input_squares =
      nullptr;  // the same of this step's input; null without a norm in front
  float epsilon = 0.0f;
  uint32_t input_ready =
      0;  // what the counter of the step before reaches when all of its output is written
};

struct ChainParams {
  ChainStepParams steps[kMaxChainSteps];
  int32_t count = 0;
  // Between launches: all slots of `parts` hold kChainNoSum, all counters are zero.
  float* parts = nullptr;        // [CTAs][2][kernel.rows * kernel.tokens]
  uint32_t* counters = nullptr;  // [kMaxChainSteps + 1]: of each step, then of CTAs that have ended
};

// No sum has these bits: what arithmetic makes of a NaN is 0x7fffffff.
constexpr uint32_t kChainNoSum = 0xffffffffu;

// By ascending tokens. `function` takes a ChainParams.
std::span<const StreamKernel> Bf16ChainKernels();
std::span<const StreamKernel> Fp8ChainKernels();
std::span<const StreamKernel> Fp8BlockChainKernels();
std::span<const StreamKernel> Nvfp4ChainKernels();

}  // namespace aisp::cuda
