// What the launchers of linear layers share on the host: the launch itself, and timing one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "common/result.h"

namespace aisp::cuda {

struct LaunchShape {
  int ctas = 0;
  int threads = 0;  // of a CTA
  size_t shared_bytes = 0;
  bool overlap =
      true;  // begins before the launch before it is done (programmatic dependent launch)
};

// `arguments`: a pointer to each of the kernel's parameters.
cudaError_t LaunchShaped(const void* function, const LaunchShape& shape, void** arguments,
                         cudaStream_t stream);

// Microseconds of the fastest of several launches, behind one that is not counted; waits for them.
// INTERNAL: CUDA refuses.
Result<float> BestTimeUs(cudaStream_t stream, const std::function<Status()>& launch);

}  // namespace aisp::cuda
