// Decode attention before each layer's chain, as the engine runs it: random keys and values of
// `rows` sequences per layer, one launch per layer, and, for one sequence, slots between it and the
// layers. Host code; one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/linear/linear_kernels.h"

namespace aisp::cuda {

class LayerAttention {
 public:
  // `heads` query heads of 128 on `kv_heads`. Every sequence has `context` keys, including those of
  // the step. Each row belongs to its own sequence; with `verify` all rows are the last ones of one
  // sequence.
  LayerAttention(int32_t heads, int32_t kv_heads, int32_t context, int32_t rows, bool verify,
                 int layers, cudaStream_t stream);

  // qkv [rows, (heads + 2 kv_heads) * 128] to out [rows, heads * 128], both bf16; `slots` as in
  // AttentionCall.
  void Run(int layer, void* qkv, void* out, const TokenSlots& slots, cudaStream_t stream) const;

 private:
  AttentionConfig config_;
  std::unique_ptr<Attention> attention_;
  RowSpan* spans_ = nullptr;
  int32_t* tables_ = nullptr;
  int32_t* positions_ = nullptr;
  int32_t* slots_ = nullptr;
  float* cos_sin_ = nullptr;
  char* pool_ = nullptr;
  char* workspace_ = nullptr;
  int64_t blocks_ = 0;  // per layer
  size_t layer_bytes_ = 0;
  int32_t rows_ = 0;
  int32_t sequences_ = 0;
};

}  // namespace aisp::cuda
