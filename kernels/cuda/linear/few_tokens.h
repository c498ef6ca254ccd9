// Launches layers of two to eight tokens (few_tokens.cuh); the host side.
//
// Ownership: the caller owns the region, which only these launches may use after SetRegion. Threads
// as in LinearKernels.
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
  // For at least two steps accepted by FewTokensChain (table/linear_choice.h).
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
