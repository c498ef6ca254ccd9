// Kernels for many rows: bf16 weights.
#include "kernels/cuda/linear/gemm.cuh"

namespace aisp::cuda {

std::span<const GemmKernel> Bf16GemmKernels() {
  static const GemmKernel kernels[] = {
      DescribeGemmKernel<GemmConfig<GemmFormat::kBf16, 128, 6, 2>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kBf16, 192, 5, 1>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kBf16, 256, 4, 2>>(),
  };
  return kernels;
}

}  // namespace aisp::cuda
