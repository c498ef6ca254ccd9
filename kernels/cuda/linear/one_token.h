// Launches layers of one token (one_token.cuh); the host side.
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
#include "kernels/cuda/token_slots.h"

namespace aisp::cuda {

// bf16 or FP8: 16 rows of a stage, which has one block of K for each of `warps`.
Result<CUtensorMap> TokenWeightMap(const TensorMaps& maps, const PackedWeight& w, int block_k,
                                   int warps);

class OneToken {
 public:
  // Prepares the kernels. `overlap` as in LinearOptions.
  static Result<OneToken> Create(int multiprocessors, bool overlap);

  size_t region_bytes() const;
  // 256-aligned; cleared here.
  Status SetRegion(void* memory, cudaStream_t stream);
  // For steps accepted by OneTokenChain (table/linear_choice.h); a single layer is a chain of one.
  Status Launch(std::span<const ChainStep> steps, const ChainForm& form, cudaStream_t stream);
  // The two sets, for attention between launches that publish and consume.
  TokenSlots token_slots() const { return {sets(), launches()}; }

 private:
  uint32_t* launches() const;
  uint32_t* sets() const;

  TensorMaps maps_;
  int multiprocessors_ = 0;
  bool overlap_ = true;
  char* region_ = nullptr;
};

}  // namespace aisp::cuda
