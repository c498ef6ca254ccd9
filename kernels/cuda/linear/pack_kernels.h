// The kernels for packing (pack.cc) and for expanding packed weights to bf16 for cuBLASLt. Launch
// functions only; errors show in cudaGetLastError(). Pointers are device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/linear/linear.h"

namespace aisp::cuda {

// Where the rows of a part go in the packed weight.
struct RowMap {
  int64_t offset = 0;
  bool gated = false;
  int part = 0;
};

// Rows of a floating-point matrix, or of an e4m3 one.
struct SourceRows {
  SourceType type = SourceType::kBf16;
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t k = 0;
};

void PackBf16(const SourceRows& from, const RowMap& map, void* to, cudaStream_t stream);
// Writes scales[row of the packed weight].
void PackFp8(const SourceRows& from, const RowMap& map, void* to, float* scales,
             cudaStream_t stream);
// One block scale per 8 packed rows x 128 of K. `from.rows` starts at a multiple of 128 of its
// part.
void PackFp8Block(const SourceRows& from, const RowMap& map, void* to, float* scales,
                  cudaStream_t stream);
// Copies e4m3 rows unchanged; row_scales [rows], or null for `scale`.
void CopyFp8(const SourceRows& from, const float* row_scales, float scale, const RowMap& map,
             void* to, float* scales, cudaStream_t stream);
// block_scales [ceil(rows/128), ceil(k/128)].
void CopyFp8Block(const SourceRows& from, const float* block_scales, const RowMap& map, void* to,
                  float* scales, cudaStream_t stream);
// `to` must be zeroed. scales[row]: factor of the packed weight's row.
void PackNvfp4(const SourceRows& from, const RowMap& map, void* to, int64_t group_bytes,
               float* scales, cudaStream_t stream);
void CopyNvfp4(const void* nibbles, const void* block_scales, float scale, int64_t rows, int64_t k,
               const RowMap& map, void* to, int64_t group_bytes, float* scales,
               cudaStream_t stream);
void CopyBias(const float* bias, int64_t rows, const RowMap& map, float* to, cudaStream_t stream);

// Packed rows [begin, begin + rows) of a quantised weight as bf16 [rows, k], scales applied.
void ExpandRows(const PackedWeight& weight, int64_t begin, int64_t rows, void* to,
                cudaStream_t stream);
// y[:, i] = silu(gate_i) * up_i from x [rows, n], gate and up interleaved by eight columns; bias
// [n] or null. All bf16.
void SiluMulInterleaved(const void* x, const float* bias, int32_t rows, int64_t n, void* y,
                        int64_t y_stride, cudaStream_t stream);
// y = bias, or y += bias if `add`. y: bf16 or f32 [rows, n].
void SpreadBias(const float* bias, bool add, bool f32, int32_t rows, int64_t n, void* y,
                int64_t y_stride, cudaStream_t stream);

}  // namespace aisp::cuda
