// The exports of libaisp_cuda.so.
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/load.h"
// Some distributions omit this part of the toolkit.
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define AISP_NVTX
#endif

#define AISP_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

aisp::Result<aisp::CudaBackend> Open(const aisp::CudaBackendOptions& options) {
  aisp::CudaBackend backend;
  AISP_ASSIGN_OR_RETURN(backend.device, aisp::cuda::MakeCudaDevice(options.index));
  AISP_ASSIGN_OR_RETURN(backend.ops, aisp::cuda::MakeCudaOps(options, *backend.device));
  return backend;
}

}  // namespace

AISP_EXPORT int32_t aisp_cuda_abi() { return aisp::kCudaBackendAbi; }

AISP_EXPORT void aisp_cuda_open(const aisp::CudaBackendOptions* options,
                                aisp::Result<aisp::CudaBackend>* backend) {
  *backend = Open(*options);
}

AISP_EXPORT bool aisp_cuda_ranges(aisp::ProfilerRanges* ranges) {
#ifdef AISP_NVTX
  ranges->push = [](const char* name) { nvtxRangePushA(name); };
  ranges->pop = [] { nvtxRangePop(); };
  return true;
#else
  (void)ranges;
  return false;
#endif
}

AISP_EXPORT void aisp_cuda_limits(int32_t index, aisp::Result<aisp::CudaLimits>* limits) {
  *limits = aisp::cuda::MeasureLimits(index);
}
