// Seeded normal values in device memory. The same for a (seed, index) whatever they become later.
#pragma once

#include <cuda_runtime_api.h>

#include "common/result.h"
#include "kernels/device/tensor_view.h"

namespace aisp::cuda {

// `type`: f32 or bf16; both get the bf16 values.
Status LaunchFillNormal(void* out, DType type, int64_t count, float deviation, uint64_t seed,
                        cudaStream_t stream);

}  // namespace aisp::cuda
