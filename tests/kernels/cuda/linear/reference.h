// The reference product for the linear layers. Test support.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace aisp::cuda::test {

// y = x W^T in double. x [rows, k], w [n, k], y [rows, n]: device memory.
void ReferenceProduct(const float* x, const float* w, double* y, int64_t rows, int64_t n, int64_t k,
                      cudaStream_t stream);

}  // namespace aisp::cuda::test
