// The operations of kernels/ops.h on a CUDA GPU: linear/ and attention/ for real models' shapes in
// bf16 and below, plain kernels (rows.h) for f32 and everything else.
#pragma once

#include <memory>

#include "kernels/cuda/load.h"
#include "kernels/ops.h"

namespace aisp::cuda {

// The device outlives the operations.
Result<std::unique_ptr<Ops>> MakeCudaOps(const CudaBackendOptions& options, Device& device);

}  // namespace aisp::cuda
