// NVFP4 kernels for few rows. The sizes were chosen by measurement on an H200 (docs/performance.md).
#include <array>

#include "kernels/cuda/linear/stream_linear.cuh"

namespace aisp::cuda {
namespace {

template <StreamFormat kFormat, int kTokens, int kGroups, int kStageK, int kStages>
StreamKernel Instance() {
  return DescribeStreamKernel<StreamConfig<kFormat, kTokens, kGroups, 1, kStageK, kStages>>();
}

}  // namespace

std::span<const StreamKernel> Nvfp4StreamKernels() {
  constexpr auto kNvfp4 = StreamFormat::kNvfp4;
  static const std::array kKernels = {
      Instance<kNvfp4, 8, 3, 256, 3>(),   Instance<kNvfp4, 16, 3, 256, 3>(),
      Instance<kNvfp4, 32, 2, 256, 3>(),  Instance<kNvfp4, 64, 2, 128, 4>(),
      Instance<kNvfp4, 128, 2, 128, 4>(),
  };
  return kKernels;
}

}  // namespace aisp::cuda
