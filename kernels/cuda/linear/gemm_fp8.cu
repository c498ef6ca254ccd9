// Kernels for many rows: FP8 weights and activations.
#include "kernels/cuda/linear/gemm.cuh"
#include "kernels/cuda/linear/gemm_apart.cuh"
#include "kernels/cuda/linear/gemm_split.cuh"

namespace aisp::cuda {
namespace {

template <class C>
GemmKernel DescribeApartGemmKernel() {
  GemmKernel kernel = DescribeSplitGemmKernel<C>();
  kernel.apart = reinterpret_cast<const void*>(&GemmApartKernel<C>);
  return kernel;
}

}  // namespace

std::span<const GemmKernel> Fp8GemmKernels() {
  static const GemmKernel kernels[] = {
      DescribeSplitGemmKernel<GemmConfig<GemmFormat::kFp8, 64, 8, 1>>(),
      DescribeApartGemmKernel<GemmConfig<GemmFormat::kFp8, 128, 6, 2>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kFp8, 192, 5, 1>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kFp8, 256, 4, 2>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kFp8Block, 128, 6, 2>>(),
      DescribeGemmKernel<GemmConfig<GemmFormat::kFp8Block, 256, 4, 2>>(),
  };
  return kernels;
}

}  // namespace aisp::cuda
