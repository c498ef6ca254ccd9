// The launch of several layers at once, seen from the host.
//
// Who owns what: the caller owns the region, which belongs to chains alone from SetRegion on.
// Threads as LinearKernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "common/result.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/tensor_map.h"

namespace aisp::cuda {

class Chains {
 public:
  // Prepares the kernels. `overlap` as in LinearOptions.
  static Result<Chains> Create(int multiprocessors, bool overlap);

  size_t region_bytes() const { return region_bytes_; }
  // 256-aligned; cleared here.
  Status SetRegion(void* memory, cudaStream_t stream);
  // Of steps that StreamChain (table/linear_choice.h) takes.
  Status Launch(std::span<const ChainStep> steps, cudaStream_t stream) const;

 private:
  TensorMaps maps_;
  int multiprocessors_ = 0;
  bool overlap_ = true;
  size_t part_bytes_ = 0;
  size_t region_bytes_ = 0;
  char* region_ = nullptr;
};

}  // namespace aisp::cuda
