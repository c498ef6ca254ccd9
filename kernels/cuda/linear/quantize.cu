#include <cuda_bf16.h>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/linear/formats.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostUnits = 4;  // of 16 elements, per thread

// The maximum over a block's threads, returned to all of them.
__device__ __forceinline__ float BlockMost(float v) {
  __shared__ float warps[kMostThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? warps[threadIdx.x % 32] : 0.0f;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, offset));
  return v;
}

// One block per row, which stays in registers between finding its maximum and rounding; all loads
// are in flight together. A unit is 16 elements, 32 bytes in and 16 out, permuted.
template <int kUnits>
__global__ void __launch_bounds__(kMostThreads)
    QuantizeRowsKernel(const __nv_bfloat16* x, uint8_t* y, float* scales, int64_t k) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t row = blockIdx.x;
  const auto* const in = reinterpret_cast<const uint4*>(x + row * k);
  const auto units = static_cast<int32_t>(k / 16);
  uint4 kept[kUnits][2] = {};
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int32_t i = u * static_cast<int32_t>(blockDim.x) + static_cast<int32_t>(threadIdx.x);
    if (i < units) {
      kept[u][0] = in[2 * i];
      kept[u][1] = in[2 * i + 1];
    }
  }
  float largest = 0.0f;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(kept[u]);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float2 f = __bfloat1622float2(pairs[j]);
      largest = fmaxf(largest, fmaxf(fabsf(f.x), fabsf(f.y)));
    }
  }
  largest = BlockMost(largest);
  const float scale = largest > 0.0f ? largest / kFp8Max : 1.0f;
  const float inverse = 1.0f / scale;
  if (threadIdx.x == 0) scales[row] = scale;
  auto* const out = reinterpret_cast<uint4*>(y + row * k);
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int32_t i = u * static_cast<int32_t>(blockDim.x) + static_cast<int32_t>(threadIdx.x);
    const auto* const values = reinterpret_cast<const __nv_bfloat16*>(kept[u]);
    uint4 packed;
    auto* const bytes = reinterpret_cast<uint8_t*>(&packed);
#pragma unroll
    for (int j = 0; j < 16; ++j)
      bytes[Fp8Position(j)] = ToFp8(__bfloat162float(values[j]) * inverse);
    if (i < units) out[i] = packed;
  }
}

__device__ __forceinline__ uint64_t Mix(uint64_t x) {  // SplitMix64's finaliser
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__global__ void FillNormalKernel(__nv_bfloat16* out, int64_t count, float deviation,
                                 uint64_t seed) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    const uint64_t bits = Mix(Mix(seed) ^ static_cast<uint64_t>(i));
    const float u = (static_cast<float>(bits >> 40) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(bits & 0xffffff) * 0x1p-24f;
    out[i] = __float2bfloat16(deviation * sqrtf(-2.0f * __logf(u)) * cospif(2.0f * v));
  }
}

}  // namespace

Status QuantizeRows(const void* x, void* y, float* scales, int32_t rows, int64_t k,
                    cudaStream_t stream) {
  constexpr int64_t kMostWidth = int64_t{16} * kMostUnits * kMostThreads;
  if (k < 16 || k % 16 != 0 || k > kMostWidth || rows < 0) {
    return InvalidArgument("quantising rows to FP8 needs a multiple of 16 elements, at most " +
                           std::to_string(kMostWidth) + ", not " + std::to_string(k));
  }
  if (rows == 0) return {};
  const int64_t units = k / 16;
  const int each = units <= 256 ? 1 : units <= 2 * kMostThreads ? 2 : kMostUnits;
  const int64_t threads = (units + each - 1) / each;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows));
  config.blockDim = dim3(static_cast<unsigned>((threads + 31) / 32 * 32));
  config.stream = stream;
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = 1;
  const auto* const from = static_cast<const __nv_bfloat16*>(x);
  auto* const to = static_cast<uint8_t*>(y);
  if (each == 1) {
    cudaLaunchKernelEx(&config, QuantizeRowsKernel<1>, from, to, scales, k);
  } else if (each == 2) {
    cudaLaunchKernelEx(&config, QuantizeRowsKernel<2>, from, to, scales, k);
  } else {
    cudaLaunchKernelEx(&config, QuantizeRowsKernel<kMostUnits>, from, to, scales, k);
  }
  return CheckLaunch("quantising rows to FP8");
}

Status FillNormalBf16(void* out, int64_t count, float deviation, uint64_t seed,
                      cudaStream_t stream) {
  if (count <= 0) return {};
  FillNormalKernel<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(out), count, deviation,
                                             seed);
  return CheckLaunch("filling with random weights");
}

}  // namespace aisp::cuda
