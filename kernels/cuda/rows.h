// The row-wise operations of kernels/ops.h as kernel launches: embedding, norms, rotary positions,
// activations, expert selection.
//
// Parameters are those of the Ops interface; the caller has checked shapes. Launches only: no
// waiting, no allocation.
#pragma once

#include <cuda_runtime_api.h>

#include "common/result.h"
#include "kernels/params.h"

namespace aisp::cuda {

Status LaunchEmbedding(const EmbeddingParams& params, cudaStream_t stream);
Status LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream);
// The norm with its result rounded to e4m3, bit-identical to QuantizeRows (linear/quantize.h) of
// the bf16 result; params.y is not written. For widths accepted by RoundsInNorm
// (table/kernel_table.h).
Status LaunchRoundedNorm(const RmsNormParams& params, void* y, float* scales, cudaStream_t stream);
// Copies row row_indices[i] to row i, or row i if there are no indices.
Status LaunchTap(const TapParams& params, const int32_t* row_indices, int32_t rows,
                 cudaStream_t stream);
Status LaunchSpread(const SpreadParams& params, int32_t rows, cudaStream_t stream);
Status LaunchSiluMul(const SiluMulParams& params, cudaStream_t stream);
Status LaunchSiluAdd(const SiluAddParams& params, int32_t rows, cudaStream_t stream);
// For head sizes and formats without a kernel in attention/.
Status LaunchPlainRopeAppend(const RopeAppendParams& params, cudaStream_t stream);
Status LaunchLatentAppend(const LatentAppendParams& params, cudaStream_t stream);
Status LaunchSelectExperts(const SelectExpertsParams& params, cudaStream_t stream);
// One block per row and head: any head size up to 256, any format.
Status LaunchPlainAttention(const AttentionParams& params, cudaStream_t stream);
// Converts elements of `from` (f32, bf16, f16) to `to` (f32, bf16), both in device memory.
Status LaunchConvert(const void* from, DType from_type, void* to, DType to_type, int64_t count,
                     cudaStream_t stream);

// y = x W^T + b, row-major and unpacked, for what linear/ does not support: f32 and odd shapes. W
// has the dtype of x: f32 or bf16.
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

// The experts' MLP, row by row: every row reads the weights of its experts. Suited to few rows.
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
  float* y = nullptr;          // [rows, hidden], accumulated
  int32_t rows = 0;
};
Status LaunchExperts(const ExpertsCall& call, cudaStream_t stream);

}  // namespace aisp::cuda
