// A read-only pass over memory: the yardstick of the bandwidth-bound kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace aisp::cuda {

// Reads `bytes` (a multiple of 16) with `blocks` blocks; `sink` is four bytes that it may write.
void ReadOnlyPass(const void* data, size_t bytes, int blocks, void* sink, cudaStream_t stream);

}  // namespace aisp::cuda
