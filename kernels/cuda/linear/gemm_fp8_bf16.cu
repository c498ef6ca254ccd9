// Kernels for many rows: FP8 weights, bf16 activations.
#include "kernels/cuda/linear/gemm.cuh"

namespace aisp::cuda {

std::span<const GemmKernel> Fp8Bf16GemmKernels() {
  static const GemmKernel kernels[] = {
      DescribeGemmKernel<GemmConfig<GemmFormat::kFp8Bf16, 128, 6, 2>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kFp8Bf16, 256, 5, 1>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kFp8BlockBf16, 128, 6, 2>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kFp8BlockBf16, 256, 5, 1>>(),
  };
  return kernels;
}

}  // namespace aisp::cuda
