// The library's side of bench/kernels.h.
#pragma once

#include "kernels/cuda/bench/kernels.h"

namespace aisp::cuda {

Result<KernelBench> MeasureKernels(const KernelBenchOptions& options);

}  // namespace aisp::cuda
