// Many byte ranges from one piece of device memory to another in few launches: the ranges travel as arguments of the kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <span>

#include "kernels/device/device.h"

namespace aisp::cuda {

// `target` and `source` are memory that the current device can reach; ranges of the target do not overlap. Enqueues on `stream`.
cudaError_t LaunchRangeCopy(void* target, const void* source, std::span<const CopyRange> ranges,
                            cudaStream_t stream);

}  // namespace aisp::cuda
