// Launches several layers at once; the host side.
//
// Ownership: the caller owns the region, which only chains may use after SetRegion. Threads as in
// LinearKernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "common/result.h"
#include "kernels/cuda/linear/chain_kernels.h"
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
  // For steps accepted by StreamChain (table/linear_choice.h). `adapter_of_row`: [rows], for steps
  // with adapters.
  Status Launch(std::span<const ChainStep> steps, const int32_t* adapter_of_row,
                cudaStream_t stream) const;

 private:
  static Status Prepare(const StreamKernel& kernel);
  uint32_t FewestCtas(int32_t units) const;
  int64_t PartFloats(const StreamKernel& kernel) const;
  Result<ChainStepParams> LayerOf(const StreamKernel& kernel, const ChainStep& step) const;
  // Makes `params` of layer `layer` read what `before` stores.
  void Follow(const StreamKernel& kernel, const ChainStep& step, size_t layer,
              ChainStepParams& before, ChainStepParams& params) const;
  Result<AdaptedStepParams> SumsOf(const StreamKernel& kernel, const ChainStep& step,
                                   const ChainStepParams& layer,
                                   const int32_t* adapter_of_row) const;
  Status AddAdapters(const StreamKernel& kernel, const ChainStep& step, AdaptedStepParams& params,
                     const AdaptedStepParams& sums) const;
  Status LaunchPlain(const StreamKernel& kernel, std::span<const ChainStep> steps,
                     cudaStream_t stream) const;
  Status LaunchAdapted(const StreamKernel& kernel, std::span<const ChainStep> steps,
                       const int32_t* adapter_of_row, cudaStream_t stream) const;
  Status Run(const StreamKernel& kernel, void* params, cudaStream_t stream) const;
  uint32_t* counters() const { return reinterpret_cast<uint32_t*>(region_); }
  float* squares(size_t layer) const;
  float* parts() const;

  TensorMaps maps_;
  int multiprocessors_ = 0;
  bool overlap_ = true;
  size_t part_bytes_ = 0;
  size_t region_bytes_ = 0;
  char* region_ = nullptr;
};

}  // namespace aisp::cuda
