// Kernels for many rows: NVFP4 weights.
#include "kernels/cuda/linear/gemm.cuh"

namespace aisp::cuda {

std::span<const GemmKernel> Nvfp4GemmKernels() {
  static const GemmKernel kernels[] = {
      DescribeGemmKernel<GemmConfig<GemmFormat::kNvfp4, 128, 6, 2>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kNvfp4, 256, 5, 2>>(),
  };
  return kernels;
}

}  // namespace aisp::cuda
