// bf16 kernels for few rows. The sizes were chosen by measurement on an H200 (docs/performance.md).
#include <array>

#include "kernels/cuda/linear/stream_linear.cuh"

namespace aisp::cuda {
namespace {

template <StreamFormat kFormat, int kTokens, int kGroups, int kStageK, int kStages>
StreamKernel Instance() {
  return DescribeStreamKernel<StreamConfig<kFormat, kTokens, kGroups, 1, kStageK, kStages>>();
}

}  // namespace

std::span<const StreamKernel> Bf16StreamKernels() {
  constexpr auto kBf16 = StreamFormat::kBf16;
  static const std::array kKernels = {
      Instance<kBf16, 8, 1, 128, 5>(),
      Instance<kBf16, 16, 1, 128, 5>(),
      Instance<kBf16, 32, 2, 64, 5>(),
      Instance<kBf16, 64, 2, 64, 4>(),
  };
  return kKernels;
}

}  // namespace aisp::cuda
