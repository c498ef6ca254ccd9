// The kernels for one token: one instance per weight format.
#include "kernels/cuda/linear/one_token.cuh"

namespace aisp::cuda {
namespace {

template <WeightFormat kFormat>
OneTokenKernel Describe() {
  using C = OneTokenConfig<kFormat>;
  OneTokenKernel kernel;
  kernel.function = reinterpret_cast<const void*>(&OneTokenChain<C>);
  kernel.warps = C::kWarps;
  kernel.block_k = C::kBlockK;
  kernel.stage_bytes = C::kStageBytes;
  kernel.fixed_bytes = OneTokenShared<C>::kFixedBytes;
  kernel.threads = C::kThreads;
  return kernel;
}

}  // namespace

OneTokenKernel OneTokenKernelOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kFp8:
      return Describe<WeightFormat::kFp8>();
    case WeightFormat::kFp8Block:
      return Describe<WeightFormat::kFp8Block>();
    case WeightFormat::kNvfp4:
      return Describe<WeightFormat::kNvfp4>();
    case WeightFormat::kBf16:
      break;
  }
  return Describe<WeightFormat::kBf16>();
}

}  // namespace aisp::cuda
