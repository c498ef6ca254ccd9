// The table of few-row kernels (stream_linear.cuh) for the host: instances by format and number of
// tokens.
//
// Pure data and functions; any thread.
#pragma once

#include <cuda_runtime_api.h>  // __host__, __device__

#include <cstdint>
#include <span>

#include "kernels/cuda/linear/linear.h"

namespace aisp::cuda {

// Format of the weight and, after the x, of the activations if not bf16.
enum class StreamFormat : uint8_t { kBf16, kFp8, kFp8Block, kNvfp4, kFp8x8, kFp8x8Block };

// Parameters of a launch besides the two tensor maps.
struct StreamParams {
  const uint8_t* nvfp4 = nullptr;
  const float* scales = nullptr;    // [n], or [n / 8, scale_columns]: one per 8 rows x 128 of K
  const float* bias = nullptr;      // [n] or null
  const float* x_scales = nullptr;  // [rows] or null
  void* y = nullptr;
  int64_t y_stride = 0;
  // [CTAs][kernel.rows * kernel.tokens], all kChainNoSum between launches
  float* partials = nullptr;
  int64_t group_bytes = 0;  // NVFP4: per group of 64 rows
  int32_t row_groups = 0;   // NVFP4: number stored
  int32_t n = 0;            // weight rows
  int32_t rows = 0;         // tokens
  int32_t k_units = 0;      // units along K
  int32_t units = 0;        // total units
  int32_t scale_columns = 0;
  // Units that a CTA prefetches into L2 while the previous kernel ends, and their distance.
  int32_t prefetch_units = 0;
  int32_t prefetch_stride = 1;
  Store store = Store::kBf16;
  // [CTAs]: number of launches in which the CTA had requested all of its weights.
  uint32_t* asked_for_all = nullptr;
  PollTag poll;
};

struct StreamKernel {
  const void* function = nullptr;  // (CUtensorMap weight, CUtensorMap x, StreamParams)
  StreamFormat format = StreamFormat::kBf16;
  int tokens = 0;   // capacity of its sums
  int rows = 0;     // of the weight, per unit
  int stage_k = 0;  // of K, per unit
  int stages = 0;
  bool announces = false;  // increments asked_for_all
  int stage_bytes = 0;
  int weight_box_k =
      0;  // boxes of the tensor maps: [rows][weight_box_k] (0: no map), [tokens][input_box_k]
  int input_box_k = 0;
  int shared_bytes = 0;
  int threads = 0;
};

// By ascending tokens within a format.
std::span<const StreamKernel> Bf16StreamKernels();
std::span<const StreamKernel> Fp8StreamKernels();
std::span<const StreamKernel> Nvfp4StreamKernels();

// The first unit of a CTA's range.
__host__ __device__ constexpr int32_t FirstUnit(int32_t cta, int32_t ctas, int32_t units) {
  return static_cast<int32_t>(static_cast<int64_t>(cta) * units / ctas);
}
// The CTA whose range contains `unit`.
__host__ __device__ constexpr int32_t OwnerOfUnit(int32_t unit, int32_t ctas, int32_t units) {
  return static_cast<int32_t>(((static_cast<int64_t>(unit) + 1) * ctas - 1) / units);
}

}  // namespace aisp::cuda
