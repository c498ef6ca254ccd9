#include <cuda_bf16.h>

#include "kernels/cuda/linear/formats.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

constexpr int kThreads = 256;

// A block per row. A thread takes 16 elements at a time: the unit of the permutation, 32 bytes in
// and 16 out.
__global__ void __launch_bounds__(kThreads)
    QuantizeRowsKernel(const __nv_bfloat16* x, uint8_t* y, float* scales, int64_t k) {
  AllowNextKernel();
  WaitForPreviousKernel();
  const int64_t row = blockIdx.x;
  const uint4* const in = reinterpret_cast<const uint4*>(x + row * k);
  const auto elements = static_cast<int32_t>(k / 16);
  float largest = 0.0f;
  for (int32_t i = threadIdx.x; i < 2 * elements; i += kThreads) {
    const uint4 v = in[i];
    const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(&v);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 f = __bfloat1622float2(pairs[j]);
      largest = fmaxf(largest, fmaxf(fabsf(f.x), fabsf(f.y)));
    }
  }
  largest = BlockMax<kThreads>(largest);
  const float scale = largest > 0.0f ? largest / kFp8Max : 1.0f;
  const float inverse = 1.0f / scale;
  if (threadIdx.x == 0) scales[row] = scale;
  uint4* const out = reinterpret_cast<uint4*>(y + row * k);
  for (int32_t i = threadIdx.x; i < elements; i += kThreads) {
    const uint4 v[2] = {in[2 * i], in[2 * i + 1]};
    const auto* const values = reinterpret_cast<const __nv_bfloat16*>(v);
    uint4 packed;
    auto* const bytes = reinterpret_cast<uint8_t*>(&packed);
#pragma unroll
    for (int j = 0; j < 16; ++j) {
      bytes[Fp8Position(j)] = ToFp8(__bfloat162float(values[j]) * inverse);
    }
    out[i] = packed;
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

Status LastError(const char* what) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return Internal(std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace

Status QuantizeRows(const void* x, void* y, float* scales, int32_t rows, int64_t k,
                    cudaStream_t stream) {
  if (k % 16 != 0 || rows < 0) {
    return InvalidArgument("quantising rows to FP8 needs a multiple of 16 elements, not " +
                           std::to_string(k));
  }
  if (rows == 0) return {};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(rows));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, QuantizeRowsKernel, static_cast<const __nv_bfloat16*>(x),
                     static_cast<uint8_t*>(y), scales, k);
  return LastError("quantising rows to FP8");
}

Status FillNormalBf16(void* out, int64_t count, float deviation, uint64_t seed,
                      cudaStream_t stream) {
  if (count <= 0) return {};
  FillNormalKernel<<<1024, 256, 0, stream>>>(static_cast<__nv_bfloat16*>(out), count, deviation,
                                             seed);
  return LastError("filling with random weights");
}

}  // namespace aisp::cuda
