#include "bench/kernel_timings.h"

namespace aisp {

Result<KernelBench> BenchCudaKernels(const KernelBenchOptions& options,
                                     std::span<const std::string> folders) {
  AISP_ASSIGN_OR_RETURN(
      void* function, FindCudaFunction("libaisp_cuda_bench.so", kCudaBenchKernelsSymbol, folders));
  Result<KernelBench> bench = Internal("the kernels' bench did not answer");
  reinterpret_cast<CudaBenchKernelsFn>(function)(&options, &bench);
  return bench;
}

}  // namespace aisp
