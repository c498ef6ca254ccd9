// NVFP4 kernels for few rows. The sizes were chosen by measurement on an H200
// (docs/performance.md).
#include <array>

#include "kernels/cuda/linear/stream_linear.cuh"

namespace aisp::cuda {
namespace {

template <int kTokens, int kGroups, int kStageK, int kStages, int kSplits, int kResident = 1,
          bool kByWarp = false>
StreamKernel Instance() {
  return DescribeStreamKernel<StreamConfig<StreamFormat::kNvfp4, kTokens, kGroups, 1, kStageK,
                                           kStages, kSplits, kResident, kStages, kByWarp>>();
}

}  // namespace

std::span<const StreamKernel> Nvfp4StreamKernels() {
  static const std::array kKernels = {
      Instance<8, 2, 256, 4, 2, 2, true>(), Instance<16, 3, 256, 3, 1>(),
      Instance<32, 2, 256, 6, 2>(),         Instance<64, 2, 128, 4, 1>(),
      Instance<128, 2, 128, 4, 1>(),
  };
  return kKernels;
}

}  // namespace aisp::cuda
