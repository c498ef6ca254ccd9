#include "kernels/cuda/attention/kernel_args.cuh"
namespace aisp::cuda {
int32_t PrefillSharedBytes(int32_t, bool) { return 0; }
cudaError_t PreparePrefill(int32_t, bool) { return cudaErrorInvalidValue; }
cudaError_t LaunchPrefill(int32_t, bool, int32_t, const CUtensorMap&, const KernelArgs&,
                          cudaStream_t) {
  return cudaErrorInvalidValue;
}
}  // namespace aisp::cuda
