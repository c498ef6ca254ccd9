// FP8 kernels for few rows. The sizes were chosen by measurement on an H200 (docs/performance.md).
#include <array>

#include "kernels/cuda/linear/stream_linear.cuh"

namespace aisp::cuda {
namespace {

template <StreamFormat kFormat, int kTokens, int kGroups, int kStageK, int kStages,
          int kResident = 1, bool kByWarp = false>
StreamKernel Instance() {
  return DescribeStreamKernel<StreamConfig<kFormat, kTokens, kGroups, 1, kStageK, kStages, 1,
                                           kResident, kStages, kByWarp>>();
}

}  // namespace

std::span<const StreamKernel> Fp8StreamKernels() {
  using enum StreamFormat;
  static const std::array kKernels = {
      Instance<kFp8, 8, 2, 128, 6, 2, true>(), Instance<kFp8, 16, 2, 256, 5>(),
      Instance<kFp8, 32, 2, 256, 4>(),         Instance<kFp8, 64, 2, 128, 3>(),
      Instance<kFp8, 128, 2, 128, 3>(),        Instance<kFp8Block, 8, 2, 128, 9>(),
      Instance<kFp8Block, 16, 2, 128, 9>(),    Instance<kFp8Block, 32, 2, 128, 8>(),
      Instance<kFp8Block, 64, 2, 128, 3>(),    Instance<kFp8x8, 8, 1, 256, 6, 2>(),
      Instance<kFp8x8, 16, 1, 256, 5, 2>(),    Instance<kFp8x8, 32, 1, 256, 4, 2>(),
      Instance<kFp8x8, 64, 2, 128, 4>(),       Instance<kFp8x8, 128, 2, 128, 4>(),
      Instance<kFp8x8Block, 8, 2, 128, 6>(),   Instance<kFp8x8Block, 16, 2, 128, 6>(),
      Instance<kFp8x8Block, 32, 2, 128, 5>(),  Instance<kFp8x8Block, 64, 2, 128, 4>(),
  };
  return kKernels;
}

}  // namespace aisp::cuda
