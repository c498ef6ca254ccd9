// A launch of a prepared step, as its launcher receives it. For cuda_step.cc and the files with
// launchers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_step.h"

namespace aisp::cuda {

inline constexpr size_t kNotSlow = SIZE_MAX;

struct BoundLaunch {
  PlannedLaunch plan;
  std::vector<ChainStep> steps;  // of several layers, or of one token
  AttentionSet::Instance* attention = nullptr;
  KvLayer kv;
  TokenDrawer* drawer = nullptr;
  const AdapterStore* adapters = nullptr;
  PollTag poll;
  size_t slow = kNotSlow;  // handle of SlowPaths
};

// The arguments of a launcher.
struct Call {
  const StepParts& parts;
  const Programme& programme;
  const Bucket& bucket;
  const BoundLaunch& launch;
  const StepInputs& in;
  cudaStream_t stream;

  NodeId id(size_t index = 0) const { return launch.plan.nodes[index]; }
  template <typename T>
  const T& Params(size_t index = 0) const {
    return programme.node(id(index)).As<T>();
  }
  int32_t rows(size_t index = 0) const {
    const ValueId output = programme.node(id(index)).output;
    return output >= 0 && programme.value(output).rows == RowSet::kLogits ? in.num_logit_rows
                                                                          : in.batch.rows;
  }
};

// Linear layers (step_linear.cc).
Status LinearChain(const Call& c);
Status LinearAlone(const Call& c);
Status LinearWithAdapters(const Call& c);

}  // namespace aisp::cuda
