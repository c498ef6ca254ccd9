// Copies by kernels: many byte ranges from one piece of device memory to another in few launches
// (the ranges travel as arguments of the kernel), and few bytes of the host.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "kernels/device/device.h"

namespace aisp::cuda {

// `target` and `source` are memory that the current device can reach; ranges of the target do not
// overlap. Enqueues on `stream`.
cudaError_t LaunchRangeCopy(void* target, const void* source, std::span<const CopyRange> ranges,
                            cudaStream_t stream);

// At most kSmallCopyBytes from page-locked host memory to the device, both aligned to 16, by a
// kernel that reads over PCIe: a copy engine takes longer to begin than these bytes take.
inline constexpr size_t kSmallCopyBytes = 16u << 10;
cudaError_t LaunchSmallCopy(void* target, const void* source, size_t bytes, cudaStream_t stream);

}  // namespace aisp::cuda
