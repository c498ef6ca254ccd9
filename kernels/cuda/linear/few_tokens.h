// The launch of layers of two to eight tokens (few_tokens.cuh), seen from the host.
//
// Who owns what: the caller owns the region, which belongs to these launches alone from SetRegion
// on. Threads as LinearKernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/result.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/linear/tensor_map.h"

namespace aisp::cuda {

class FewTokens {
 public:
  // Prepares the kernels. `overlap` as in LinearOptions.
  static Result<FewTokens> Create(int multiprocessors, bool overlap);

  size_t region_bytes() const;
  // 256-aligned; cleared here.
  Status SetRegion(void* memory, cudaStream_t stream);
  // Of at least two steps that FewTokensChain (table/linear_choice.h) takes.
  Status Launch(std::span<const ChainStep> steps, cudaStream_t stream);

 private:
  uint32_t* launches() const;
  uint32_t* sets() const;

  TensorMaps maps_;
  int multiprocessors_ = 0;
  bool overlap_ = true;
  char* region_ = nullptr;
};

}  // namespace aisp::cuda
