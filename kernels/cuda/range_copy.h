// Copies by kernels: many byte ranges between device memories in few launches (the ranges are
// kernel arguments), and small amounts of host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "kernels/device/device.h"

namespace aisp::cuda {

// `target` and `source` are accessible from the current device; target ranges do not overlap.
// Enqueues on `stream`.
cudaError_t LaunchRangeCopy(void* target, const void* source, std::span<const CopyRange> ranges,
                            cudaStream_t stream);

// Copies at most kSmallCopyBytes from page-locked host memory to the device, both 16-aligned, by a
// kernel that reads over PCIe: starting a copy engine takes longer than such a copy.
inline constexpr size_t kSmallCopyBytes = 16u << 10;
cudaError_t LaunchSmallCopy(void* target, const void* source, size_t bytes, cudaStream_t stream);

}  // namespace aisp::cuda
