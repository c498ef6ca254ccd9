// A read-only pass over memory: the reference for bandwidth-bound kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace aisp::cuda {

// Reads `bytes` (a multiple of 16) with `blocks` CTAs; `sink`: four bytes that it may write.
void ReadOnlyPass(const void* data, size_t bytes, int blocks, void* sink, cudaStream_t stream);

// Launches a kernel of `blocks` small CTAs that takes `microseconds`, reads nothing and lets the
// next one start early.
cudaError_t WaitOnDevice(int microseconds, int blocks, cudaStream_t stream);

}  // namespace aisp::cuda
