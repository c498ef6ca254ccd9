// Linear layers with many rows: by our own kernels (gemm.h) or by cuBLASLt, whichever was measured
// or estimated to be faster.
//
// Our kernels accept every packed format and finish a call in their epilogue. cuBLASLt accepts
// bf16, and FP8 with FP8 activations; other weights are first converted to bf16, gate and up stored
// before SiLU, and the bias copied to y.
//
// Owns cuBLASLt's handle and the table of measured choices; the caller owns the workspace. Threads:
// one caller at a time.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "common/result.h"
#include "kernels/cuda/linear/blas_lt.h"
#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/linear/linear_kernels.h"

namespace aisp::cuda {

class ManyRows {
 public:
  static Result<std::unique_ptr<ManyRows>> Create(const LinearOptions& options,
                                                  int multiprocessors);

  // Workspace for calls on `weight` with up to options.max_rows rows.
  size_t WorkspaceBytes(const PackedWeight& weight) const;
  Status SetWorkspace(void* memory, size_t bytes, cudaStream_t stream);

  // Launches `kernel` of GemmInstances(), or kLt; `rounds`: first rounds the bf16 rows to e4m3.
  Status Launch(const LinearCall& call, int kernel, bool rounds, cudaStream_t stream);
  // The call with FP8 rows, which are placed in the workspace.
  LinearCall Quantised(const LinearCall& call) const;
  // Measures what could serve the call unless the cache has the winner. Synchronises; overwrites y.
  Status Prepare(const LinearCall& call, cudaStream_t stream);
  // Choices measured now or in an earlier run.
  const TuningProfile& profile() const { return profile_; }
  // Whether cuBLASLt has algorithms for all products of such a call.
  bool LtHas(const LinearTraits& weight, int32_t rows, bool fp8_rows);
  std::string Describe(const LinearCall& call, const LinearChoice& choice) const;

 private:
  // What to do with cuBLASLt's products.
  enum class LtUse : uint8_t { kRun, kTune, kLookUp };

  ManyRows(const LinearOptions& options, int multiprocessors) : options_(options) {
    device_.multiprocessors = multiprocessors;
  }
  Status LaunchBy(int choice, const LinearCall& call, cudaStream_t stream);
  Result<float> TimeBy(int choice, const LinearCall& call, cudaStream_t stream);
  LtProduct LtCall(const LinearCall& call, int32_t begin, int32_t rows) const;
  Status LaunchLt(const LinearCall& call, cudaStream_t stream, LtUse use);
  Status MultiplyLt(const PackedWeight& weight, const LtProduct& product, bool expand,
                    cudaStream_t stream, LtUse use);
  size_t GatedBytes(const PackedWeight& weight) const;
  size_t QuantisedBytes(const PackedWeight& weight) const;
  void SaveChoice(const std::string& key, int32_t rows, int tokens) const;

  LinearOptions options_;
  Gemm gemm_;
  std::unique_ptr<BlasLt> blas_;
  DeviceFacts device_;
  TuningProfile profile_;
  std::map<std::pair<std::string, int32_t>, bool> lt_has_;  // by product and rows
  char* workspace_ = nullptr;   // without the parts of products, which come first
  size_t workspace_bytes_ = 0;  // with them
};

}  // namespace aisp::cuda
