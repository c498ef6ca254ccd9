// Measures the limits of this GPU (bandwidth, products). Takes a few GiB and a second.
#pragma once

#include "kernels/cuda/load.h"

namespace aisp::cuda {

Result<CudaLimits> MeasureLimits(int32_t index);

}  // namespace aisp::cuda
