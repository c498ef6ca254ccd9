// Linear layers of many rows: by our own kernels (gemm.h) or by cuBLASLt, whichever was or is expected to be faster.
//
// Ours take every format as it is packed, and finish a call in their epilogue. cuBLASLt takes bf16, and FP8 with FP8 activations;
// it needs other weights widened to bf16 first, gate and up stored before SiLU, and the bias spread over y.
//
// Owns cuBLASLt's handle and the table of measured choices; the workspace is the caller's. Threads: one caller at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>

#include "common/result.h"
#include "kernels/cuda/linear/blas_lt.h"
#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/linear/linear.h"

namespace aisp::cuda {

class ManyRows {
 public:
  static Result<std::unique_ptr<ManyRows>> Create(const LinearOptions& options);

  // Of a workspace for calls on `weight` of at most options.max_rows rows.
  size_t WorkspaceBytes(const PackedWeight& weight) const;
  void SetWorkspace(void* memory, size_t bytes);

  // Whether Launch serves such calls (FP8 activations with an odd width or stride have only the kernels for few rows).
  bool Takes(const LinearCall& call) const;
  Status Launch(const LinearCall& call, cudaStream_t stream);
  // Measures what could serve the call unless the cache knows the winner. Synchronises; y is overwritten.
  Status Prepare(const LinearCall& call, cudaStream_t stream);
  bool Prepared(const LinearCall& call) const;
  std::string Describe(const LinearCall& call) const;

 private:
  // What serves a call: an instance of our kernels, or cuBLASLt.
  static constexpr int kLt = -1;

  explicit ManyRows(const LinearOptions& options) : options_(options) {}
  // The call with FP8 activations where the options ask for them; not quantised yet.
  LinearCall Quantised(const LinearCall& call) const;
  bool LtTakes(const LinearCall& call) const;
  int Choose(const LinearCall& call) const;
  Status LaunchBy(int choice, const LinearCall& call, cudaStream_t stream, bool tune);
  Result<float> TimeBy(int choice, const LinearCall& call, cudaStream_t stream);
  LtProduct LtCall(const LinearCall& call, int32_t begin, int32_t rows) const;
  Status LaunchLt(const LinearCall& call, cudaStream_t stream, bool tune);
  Status MultiplyLt(const PackedWeight& weight, const LtProduct& product, bool expand,
                    cudaStream_t stream, bool tune);
  size_t GatedBytes(const PackedWeight& weight) const;
  size_t QuantisedBytes(const PackedWeight& weight) const;
  void LoadChoices();
  void SaveChoice(const std::string& key, int32_t rows, int tokens) const;

  LinearOptions options_;
  Gemm gemm_;
  std::unique_ptr<BlasLt> blas_;
  std::map<std::string, std::map<int32_t, int>> measured_;  // tokens of a tile by product and rows
  char* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
};

}  // namespace aisp::cuda
