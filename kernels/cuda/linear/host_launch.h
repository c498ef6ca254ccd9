// Host helpers of the linear launchers: launching, and timing a launch.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>

#include "common/result.h"

namespace aisp::cuda {

struct LaunchShape {
  int ctas = 0;
  int threads = 0;  // per CTA
  size_t shared_bytes = 0;
  bool overlap = true;  // starts before the previous launch is done (programmatic dependent launch)
};

// `arguments`: one pointer per kernel parameter.
cudaError_t LaunchShaped(const void* function, const LaunchShape& shape, void** arguments,
                         cudaStream_t stream);

// Microseconds of the fastest of several launches after an uncounted one; waits for them. INTERNAL:
// CUDA failed.
Result<float> BestTimeUs(cudaStream_t stream, const std::function<Status()>& launch);

}  // namespace aisp::cuda
