// Products of many rows by our own kernels (gemm.cuh): which instance, its tensor maps, its launch.
//
// Owns nothing but a table; the caller owns all memory. Threads: any, after Create. Launch
// allocates nothing and can be captured.
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

// INTERNAL: table/instances.h has other sizes than the kernels. Needs no GPU.
Status CheckGemmInstances();

class Gemm {
 public:
  // For the current device.
  static Result<Gemm> Create();

  // Whether there is an instance for such a call. FP8 weights need FP8 inputs, other weights bf16
  // ones; rows of y start at multiples of 16 bytes.
  bool Supports(const LinearCall& call) const;
  // The instance (an index into GemmKernels()) that is expected to be the fastest.
  int Choose(const LinearCall& call) const;
  // The instances for such a call.
  std::vector<int> Instances(const LinearCall& call) const;
  // What Supports accepts, by an instance of the weight's format.
  Status Launch(const LinearCall& call, int kernel, bool overlap, cudaStream_t stream) const;
  // Microseconds, roughly: what Choose goes by.
  double Estimate(const LinearCall& call, int kernel) const;
  std::string Describe(int kernel) const;
  // Parts of K that Launch takes: GemmSplits() where so many clusters run at a time.
  int Splits(const LinearCall& call, int kernel) const;

 private:
  Result<CUtensorMap> Map(const void* data, CUtensorMapDataType type, int64_t columns, int64_t rows,
                          int64_t stride_bytes, int box_columns, int box_rows,
                          CUtensorMapSwizzle swizzle) const;
  Result<CUtensorMap> OutputMap(const LinearCall& call) const;

  PFN_cuTensorMapEncodeTiled_v12000 encode_ = nullptr;
  int multiprocessors_ = 0;
  int clusters_ = 0;  // that run at a time
  std::array<int, kNumGemmSplits> split_clusters_{};
};

}  // namespace aisp::cuda
