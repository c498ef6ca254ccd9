// The library's side of bench_kernels.h.
#pragma once

#include "kernels/cuda/bench_kernels.h"

namespace aisp::cuda {

Result<KernelBench> MeasureKernels(const KernelBenchOptions& options);

}  // namespace aisp::cuda
