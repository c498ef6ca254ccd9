// A resolved step of the CUDA backend: the table's launches with their memory, weights and pools.
// Running it launches them in order without further decisions.
//
// One launcher per KernelId, in cuda_step.cc. Threads as in Ops.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "kernels/cuda/adapter_store.h"
#include "kernels/cuda/attention_set.h"
#include "kernels/cuda/block_scaled.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/draw.h"
#include "kernels/cuda/linear/linear_kernels.h"
#include "kernels/cuda/table/kernel_table.h"
#include "kernels/ops.h"

namespace aisp::cuda {

// The backend's resources that launches use; they outlive the steps.
struct StepParts {
  Device* device = nullptr;
  AttentionSet* attention = nullptr;
  LinearKernels* linear = nullptr;  // on Hopper
  BlockScaledLinear* block_scaled = nullptr;
  // By vocabulary: the drawer for the most rows.
  const std::map<int32_t, TokenDrawer*>* drawers = nullptr;
  void* expert_scratch = nullptr;
  const std::vector<std::unique_ptr<AdapterStore>>* adapters = nullptr;
  SlowPaths* slow_paths = nullptr;
  ChoiceFacts facts;
};

// Errors as in Ops::Prepare. Allocates for attention shapes that were not seen before.
Result<std::unique_ptr<PreparedStep>> PrepareCudaStep(const StepParts& parts,
                                                      const Programme& programme,
                                                      const Bucket& bucket, cudaStream_t stream);

// Single operations used by launchers.
Status RunPlainLinear(const LinearParams& params, cudaStream_t stream);
Status RunExperts(const ExpertMlpParams& params, void* scratch, cudaStream_t stream);
RopeAppendCall RopeCallOf(const RopeAppendParams& params);
Status RunRopeAppend(const RopeAppendParams& params, cudaStream_t stream);

}  // namespace aisp::cuda
