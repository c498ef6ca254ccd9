// bf16 kernels for several layers in one launch. The sizes were chosen by measurement on an H200
// (docs/performance.md).
#include <array>

#include "kernels/cuda/linear/chain.cuh"

namespace aisp::cuda {
namespace {

template <class Chain, int kTokens, int kGroups, int kStageK, int kStages,
          int kInputStages = kStages>
StreamKernel Instance() {
  return DescribeChainKernel<
      StreamConfig<StreamFormat::kBf16, kTokens, kGroups, 1, kStageK, kStages, 1, 1, kInputStages>,
      Chain>();
}

template <class Chain>
std::array<StreamKernel, 4> Instances() {
  return {
      Instance<Chain, 8, 1, 128, 12, 6>(),
      Instance<Chain, 16, 1, 128, 11, 6>(),
      Instance<Chain, 32, 1, 128, 11, 5>(),
      Instance<Chain, 64, 1, 128, 6>(),
  };
}

}  // namespace

std::span<const StreamKernel> Bf16ChainKernels() {
  static const std::array kKernels = Instances<ChainParams>();
  return kKernels;
}

std::span<const StreamKernel> AdaptedBf16ChainKernels() {
  static const std::array kKernels = Instances<AdaptedChainParams>();
  return kKernels;
}

}  // namespace aisp::cuda
