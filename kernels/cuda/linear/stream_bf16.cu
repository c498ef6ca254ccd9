// bf16 kernels for few rows. The sizes were chosen by measurement on an H200 (docs/performance.md).
#include <array>

#include "kernels/cuda/linear/stream_linear.cuh"

namespace aisp::cuda {
namespace {

template <int kTokens, int kGroups, int kStageK, int kStages, int kResident>
StreamKernel Instance() {
  return DescribeStreamKernel<
      StreamConfig<StreamFormat::kBf16, kTokens, kGroups, 1, kStageK, kStages, 1, kResident>>();
}

}  // namespace

std::span<const StreamKernel> Bf16StreamKernels() {
  static const std::array kKernels = {
      Instance<8, 1, 128, 6, 2>(),
      Instance<16, 1, 128, 5, 2>(),
      Instance<32, 1, 128, 8, 1>(),
      Instance<64, 2, 64, 4, 1>(),
  };
  return kKernels;
}

}  // namespace aisp::cuda
