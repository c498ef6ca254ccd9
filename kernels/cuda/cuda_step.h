// A resolved step of the CUDA backend: the table's launches with the memory, weights and pools that
// they work on. Running it launches them in order; nothing is chosen then.
//
// One launcher for each KernelId, in cuda_step.cc. Threads as Ops.
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

// What launches use of the backend; all of it outlives the steps.
struct StepParts {
  Device* device = nullptr;
  AttentionSet* attention = nullptr;
  LinearKernels* linear = nullptr;  // on Hopper
  BlockScaledLinear* block_scaled = nullptr;
  // By vocabulary: that for the most rows.
  const std::map<int32_t, TokenDrawer*>* drawers = nullptr;
  void* expert_scratch = nullptr;
  const std::vector<std::unique_ptr<AdapterStore>>* adapters = nullptr;
  SlowPaths* slow_paths = nullptr;
  ChoiceFacts facts;
};

// Errors as Ops::Prepare. Allocates what an attention shape needs that was not seen before.
Result<std::unique_ptr<PreparedStep>> PrepareCudaStep(const StepParts& parts,
                                                      const Programme& programme,
                                                      const Bucket& bucket, cudaStream_t stream);

// Single operations, which launchers are made of.
Status RunPlainLinear(const LinearParams& params, cudaStream_t stream);
Status RunExperts(const ExpertMlpParams& params, void* scratch, cudaStream_t stream);
RopeAppendCall RopeCallOf(const RopeAppendParams& params);
Status RunRopeAppend(const RopeAppendParams& params, cudaStream_t stream);

}  // namespace aisp::cuda
