// The row-wise operations of kernels/ops.h as kernel launches: embedding, norms, rotary positions,
// activations, routing.
//
// Parameters are those of the Ops interface; shapes were checked by the caller. Launches only:
// nothing waits, nothing allocates.
#pragma once

#include <cuda_runtime_api.h>

#include "common/result.h"
#include "kernels/params.h"

namespace aisp::cuda {

Status LaunchEmbedding(const EmbeddingParams& params, cudaStream_t stream);
Status LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream);
// The same to e4m3 rows as QuantizeRows (linear/quantize.h) makes them of bf16 ones, with the same
// bits, at once; params.y is not written. For widths of which RoundsInNorm (table/kernel_table.h)
// says so.
Status LaunchRoundedNorm(const RmsNormParams& params, void* y, float* scales, cudaStream_t stream);
// Row i is of row row_indices[i], or i where there are none.
Status LaunchTap(const TapParams& params, const int32_t* row_indices, int32_t rows,
                 cudaStream_t stream);
Status LaunchSpread(const SpreadParams& params, int32_t rows, cudaStream_t stream);
Status LaunchSiluMul(const SiluMulParams& params, cudaStream_t stream);
Status LaunchSiluAdd(const SiluAddParams& params, int32_t rows, cudaStream_t stream);
// For the head sizes and formats that attention/ has no kernel for.
Status LaunchPlainRopeAppend(const RopeAppendParams& params, cudaStream_t stream);
Status LaunchLatentAppend(const LatentAppendParams& params, cudaStream_t stream);
Status LaunchSelectExperts(const SelectExpertsParams& params, cudaStream_t stream);
// One block for each row and head: any head size up to 256, any format.
Status LaunchPlainAttention(const AttentionParams& params, cudaStream_t stream);
// Elements of `from` (f32, bf16, f16) as `to` (f32, bf16), both in device memory.
Status LaunchConvert(const void* from, DType from_type, void* to, DType to_type, int64_t count,
                     cudaStream_t stream);

// y = x W^T + b, row-major and unpacked, for what linear/ has no kernel for: f32, and odd shapes. W
// as x: f32 or bf16.
struct PlainLinearCall {
  const void* weight = nullptr;  // [n, k]
  const float* bias = nullptr;
  const void* x = nullptr;
  DType type = DType::kF32;
  void* y = nullptr;
  DType y_type = DType::kF32;
  bool accumulate = false;
  int64_t n = 0, k = 0;
  int32_t rows = 0;
};
Status LaunchPlainLinear(const PlainLinearCall& call, cudaStream_t stream);

// The experts' MLP, row by row: every row reads the weights of its experts. Few rows are what this
// is good for.
struct ExpertsCall {
  const void* gate_up = nullptr;  // [experts, 2 * intermediate, hidden]: gate's rows, then up's
  const void* down = nullptr;     // [experts, hidden, intermediate]
  DType type = DType::kBF16;
  int64_t hidden = 0, intermediate = 0;
  const void* x = nullptr;           // [rows, hidden]
  const int32_t* experts = nullptr;  // [rows, top_k]
  const float* weights = nullptr;    // [rows, top_k]
  int32_t top_k = 0;
  void* activation = nullptr;  // [rows, top_k, intermediate]
  float* y = nullptr;          // [rows, hidden], added to
  int32_t rows = 0;
};
Status LaunchExperts(const ExpertsCall& call, cudaStream_t stream);

}  // namespace aisp::cuda
