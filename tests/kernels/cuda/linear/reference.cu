#include "tests/kernels/cuda/linear/reference.h"

namespace aisp::cuda::test {
namespace {

__global__ void ProductKernel(const float* x, const float* w, double* y, int64_t n, int64_t k) {
  const int64_t column = static_cast<int64_t>(blockIdx.x) * blockDim.x / 32 + threadIdx.x / 32;
  const int64_t row = blockIdx.y;
  if (column >= n) return;
  double sum = 0.0;
  for (int64_t i = threadIdx.x % 32; i < k; i += 32) {
    sum += static_cast<double>(x[row * k + i]) * static_cast<double>(w[column * k + i]);
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  }
  if (threadIdx.x % 32 == 0) y[row * n + column] = sum;
}

}  // namespace

void ReferenceProduct(const float* x, const float* w, double* y, int64_t rows, int64_t n, int64_t k,
                      cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((n + 7) / 8), static_cast<unsigned>(rows));
  ProductKernel<<<grid, 256, 0, stream>>>(x, w, y, n, k);
}

}  // namespace aisp::cuda::test
