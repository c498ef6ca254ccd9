// Layers of one token in one launch (one_token.cuh), seen from the host: whether steps fit, and their launch. A single layer is a
// run of one step.
//
// Who owns what: the caller owns the region, which belongs to these launches alone from SetRegion on. Threads as LinearKernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "common/result.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/tensor_map.h"

namespace aisp::cuda {

class OneToken {
 public:
  // Prepares the kernels. `overlap` as in LinearOptions.
  static Result<OneToken> Create(int multiprocessors, bool overlap);

  size_t region_bytes() const;
  // 256-aligned; cleared here.
  Status SetRegion(void* memory, cudaStream_t stream);
  // Of steps that follow each other as Chains::Fits demands.
  bool Fits(std::span<const ChainStep> steps) const;
  bool Fits(const LinearCall& call) const;
  // Of steps that fit.
  Status Launch(std::span<const ChainStep> steps, cudaStream_t stream) const;

 private:
  TensorMaps maps_;
  int multiprocessors_ = 0;
  bool overlap_ = true;
  char* region_ = nullptr;
};

}  // namespace aisp::cuda
