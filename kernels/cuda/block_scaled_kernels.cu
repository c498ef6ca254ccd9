#include "kernels/cuda/block_scaled_kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

constexpr int kThreads = 256;

// Rounds to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6; ties go to the even code.
__device__ __forceinline__ uint32_t E2M1Of(float v) {
  const float m = fabsf(v);
  const uint32_t code = (m > 0.25f) + (m >= 0.75f) + (m > 1.25f) + (m >= 1.75f) + (m > 2.5f) +
                        (m >= 3.5f) + (m > 5.0f);
  return code | (signbit(v) ? 8u : 0u);
}

// One thread per group.
__global__ void QuantizeKernel(const __nv_bfloat16* x, int64_t groups, int64_t k, uint8_t* codes,
                               uint8_t* scales) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= groups) return;
  const int64_t groups_of_row = k / kScaleGroup;
  const int64_t row = index / groups_of_row, group = index % groups_of_row;
  const __nv_bfloat16* from = x + row * k + group * kScaleGroup;
  float values[kScaleGroup];
  float most = 0;
#pragma unroll
  for (int i = 0; i < kScaleGroup; ++i) {
    values[i] = __bfloat162float(from[i]);
    most = fmaxf(most, fabsf(values[i]));
  }
  constexpr float kGreatest = 6.0f;  // of e2m1
  const __nv_fp8_e4m3 scale(most / kGreatest);
  const float wide = static_cast<float>(scale);
  const float inverse = wide > 0 ? 1.0f / wide : 0.0f;
  uint8_t* to = codes + (row * k + group * kScaleGroup) / 2;
#pragma unroll
  for (int i = 0; i < kScaleGroup; i += 2) {
    to[i / 2] =
        static_cast<uint8_t>(E2M1Of(values[i] * inverse) | E2M1Of(values[i + 1] * inverse) << 4);
  }
  scales[TiledScaleOffset(row, group, k)] = scale.__x;
}

__global__ void TileKernel(const uint8_t* from, int64_t count, int64_t k, uint8_t* to) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= count) return;
  const int64_t groups = k / kScaleGroup;
  to[TiledScaleOffset(index / groups, index % groups, k)] = from[index];
}

unsigned BlocksFor(int64_t count) {
  return static_cast<unsigned>((count + kThreads - 1) / kThreads);
}

}  // namespace

Status LaunchQuantizeBlockScaled(const void* x, int32_t rows, int64_t k, uint8_t* codes,
                                 uint8_t* scales, cudaStream_t stream) {
  const int64_t groups = rows * (k / kScaleGroup);
  if (groups == 0) return {};
  QuantizeKernel<<<BlocksFor(groups), kThreads, 0, stream>>>(static_cast<const __nv_bfloat16*>(x),
                                                             groups, k, codes, scales);
  return CheckLaunch("quantising rows to NVFP4");
}

Status LaunchTileScales(const uint8_t* from, int64_t rows, int64_t k, uint8_t* to,
                        cudaStream_t stream) {
  const int64_t count = rows * (k / kScaleGroup);
  if (count == 0) return {};
  TileKernel<<<BlocksFor(count), kThreads, 0, stream>>>(from, count, k, to);
  return CheckLaunch("tiling scales");
}

}  // namespace aisp::cuda
