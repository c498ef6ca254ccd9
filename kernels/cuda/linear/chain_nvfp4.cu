// NVFP4 kernels for several layers in one launch. The sizes were chosen by measurement on an H200 (docs/performance.md).
#include <array>

#include "kernels/cuda/linear/chain.cuh"

namespace aisp::cuda {
namespace {

template <StreamFormat kFormat, int kTokens, int kGroups, int kStageK, int kStages>
StreamKernel Instance() {
  return DescribeChainKernel<StreamConfig<kFormat, kTokens, kGroups, 1, kStageK, kStages>>();
}

}  // namespace

std::span<const StreamKernel> Nvfp4ChainKernels() {
  static const std::array kKernels = {
      Instance<StreamFormat::kNvfp4, 8, 2, 256, 7>(),
      Instance<StreamFormat::kNvfp4, 16, 2, 256, 6>(),
      Instance<StreamFormat::kNvfp4, 32, 2, 128, 9>(),
      Instance<StreamFormat::kNvfp4, 64, 2, 128, 6>(),
  };
  return kKernels;
}

}  // namespace aisp::cuda
