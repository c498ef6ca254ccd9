// The kernels for a few tokens: one instance per weight format.
#include "kernels/cuda/linear/few_tokens.cuh"

namespace aisp::cuda {
namespace {

template <WeightFormat kFormat>
FewTokensKernel Describe() {
  using C = FewTokensConfig<kFormat>;
  FewTokensKernel kernel;
  kernel.function = reinterpret_cast<const void*>(&FewTokensChain<C>);
  kernel.warps = C::kWarps;
  kernel.block_k = C::kBlockK;
  kernel.shared_bytes = FewTokensShared<C>::kBytes;
  kernel.threads = C::kThreads;
  return kernel;
}

}  // namespace

FewTokensKernel FewTokensKernelOf(WeightFormat format) {
  return format == WeightFormat::kFp8 ? Describe<WeightFormat::kFp8>()
                                      : Describe<WeightFormat::kBf16>();
}

}  // namespace aisp::cuda
