// FP8 kernels for several layers in one launch. The sizes were chosen by measurement on an H200
// (docs/performance.md).
#include <array>

#include "kernels/cuda/linear/chain.cuh"

namespace aisp::cuda {
namespace {

template <StreamFormat kFormat, int kTokens, int kGroups, int kStageK, int kStages,
          int kInputStages = kStages>
StreamKernel Instance() {
  return DescribeChainKernel<
      StreamConfig<kFormat, kTokens, kGroups, 1, kStageK, kStages, 1, 1, kInputStages>>();
}

}  // namespace

std::span<const StreamKernel> Fp8ChainKernels() {
  static const std::array kKernels = {
      Instance<StreamFormat::kFp8, 8, 2, 128, 12, 6>(),
      Instance<StreamFormat::kFp8, 16, 2, 128, 12, 6>(),
      Instance<StreamFormat::kFp8, 32, 2, 128, 11, 5>(),
      Instance<StreamFormat::kFp8, 64, 2, 128, 6>(),
  };
  return kKernels;
}

std::span<const StreamKernel> Fp8BlockChainKernels() {
  static const std::array kKernels = {
      Instance<StreamFormat::kFp8Block, 8, 2, 128, 9>(),
      Instance<StreamFormat::kFp8Block, 16, 2, 128, 8>(),
      Instance<StreamFormat::kFp8Block, 32, 2, 128, 7>(),
      Instance<StreamFormat::kFp8Block, 64, 2, 128, 5>(),
  };
  return kKernels;
}

}  // namespace aisp::cuda
