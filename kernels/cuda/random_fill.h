// Seeded normal values in device memory, which depend only on (seed, index), not on later
// conversions.
#pragma once

#include <cuda_runtime_api.h>

#include "common/result.h"
#include "kernels/device/tensor_view.h"

namespace aisp::cuda {

// `type`: f32 or bf16; both get the same bf16-rounded values.
Status LaunchFillNormal(void* out, DType type, int64_t count, float deviation, uint64_t seed,
                        cudaStream_t stream);

}  // namespace aisp::cuda
