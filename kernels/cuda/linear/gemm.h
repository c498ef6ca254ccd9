// Products with many rows by our own kernels (gemm.cuh): choice of the instance, tensor maps,
// launch.
//
// Owns only a table; the caller owns all memory. Threads: any, after Create. Launch allocates
// nothing and can be captured.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/result.h"
#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/linear.h"

namespace aisp::cuda {

// INTERNAL: the sizes in table/instances.h differ from the kernels'. Needs no GPU.
Status CheckGemmInstances();

class Gemm {
 public:
  // For the current device.
  static Result<Gemm> Create();

  // Whether there is an instance for the call. FP8 weights need FP8 inputs, other weights bf16;
  // rows of y must be 16-byte aligned.
  bool Supports(const LinearCall& call) const;
  // The instance (index into GemmKernels()) with the best estimate.
  int Choose(const LinearCall& call) const;
  // The instances that support the call.
  std::vector<int> Instances(const LinearCall& call) const;
  // Launches a call that Supports accepts, with an instance of the weight's format.
  Status Launch(const LinearCall& call, int kernel, bool overlap, cudaStream_t stream) const;
  // Estimated microseconds, used by Choose.
  double Estimate(const LinearCall& call, int kernel) const;
  std::string Describe(int kernel) const;
  // Where neighbouring clusters exchange sums (gemm_apart.cuh): all bytes 0xff when it is set, and
  // used by one launch at a time. Without it, tiles are not divided among clusters.
  size_t PartBytes() const;
  void SetParts(void* parts) { parts_ = parts; }
  void* parts() const { return parts_; }
  // Number of K parts that Launch uses: GemmSplits() if so many clusters can run at once.
  int Splits(const LinearCall& call, int kernel) const { return Divide(call, kernel).splits; }

 private:
  struct Division {
    int splits = 1;
    bool apart = false;  // the parts are clusters
  };
  Division Divide(const LinearCall& call, int kernel) const;
  Result<CUtensorMap> Map(
      const void* data, CUtensorMapDataType type, int64_t columns, int64_t rows,
      int64_t stride_bytes, int box_columns, int box_rows, CUtensorMapSwizzle swizzle,
      CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) const;
  Result<CUtensorMap> OutputMap(const LinearCall& call) const;

  PFN_cuTensorMapEncodeTiled_v12000 encode_ = nullptr;
  int multiprocessors_ = 0;
  int clusters_ = 0;                                             // that can run at once
  std::vector<std::array<int, kNumGemmSplits>> split_clusters_;  // by kernel
  void* parts_ = nullptr;
};

}  // namespace aisp::cuda
