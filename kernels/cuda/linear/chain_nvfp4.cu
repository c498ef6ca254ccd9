// NVFP4 kernels for several layers in one launch. The sizes were chosen by measurement on an H200
// (docs/performance.md).
#include <array>

#include "kernels/cuda/linear/chain.cuh"

namespace aisp::cuda {
namespace {

template <int kTokens, int kGroups, int kStageK, int kStages>
StreamKernel Instance() {
  return DescribeChainKernel<
      StreamConfig<StreamFormat::kNvfp4, kTokens, kGroups, 1, kStageK, kStages>>();
}

}  // namespace

std::span<const StreamKernel> Nvfp4ChainKernels() {
  static const std::array kKernels = {
      Instance<8, 2, 256, 9>(),
      Instance<16, 2, 256, 8>(),
      Instance<32, 2, 256, 6>(),
      Instance<64, 2, 128, 8>(),
  };
  return kKernels;
}

}  // namespace aisp::cuda
