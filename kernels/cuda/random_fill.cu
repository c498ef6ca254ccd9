#include <algorithm>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/random_fill.h"

namespace aisp::cuda {
namespace {

// SplitMix64's finaliser (Steele et al., OOPSLA 2014) over (seed, index).
__device__ __forceinline__ uint64_t Mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

template <typename T>
__global__ void FillNormalKernel(T* out, int64_t count, float deviation, uint64_t seed) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t bits = Mix(seed * 0xD1342543DE82EF95ull + static_cast<uint64_t>(i));
    // Box and Muller, 1958.
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1.0p-24f;
    const float angle = static_cast<float>(bits & 0xffffff) * 0x1.0p-23f;
    const float value = deviation * sqrtf(-2.0f * logf(u)) * cospif(angle);
    out[i] = FromFloat<T>(__bfloat162float(__float2bfloat16_rn(value)));
  }
}

}  // namespace

Status LaunchFillNormal(void* out, DType type, int64_t count, float deviation, uint64_t seed,
                        cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((count + 255) / 256, 8192));
  if (type == DType::kBF16) {
    FillNormalKernel<<<blocks, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(out), count, deviation,
                                                 seed);
  } else {
    FillNormalKernel<<<blocks, 256, 0, stream>>>(static_cast<float*>(out), count, deviation, seed);
  }
  return CheckLaunch("random fill");
}

}  // namespace aisp::cuda
