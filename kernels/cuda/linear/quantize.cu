#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/fp8_unit.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kMostUnits = 4;  // of 16 elements, per thread

// The maximum over a block's threads, returned to all of them. `warps`: not those of the call
// before.
__device__ __forceinline__ float BlockMost(float v, float (&warps)[kMostThreads / 32]) {
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

// A block for each row, or for every gridDim.x-th: the next row is requested before this one is
// rounded. A row stays in registers between finding its maximum and rounding.
template <int kUnits>
__global__ void __launch_bounds__(kMostThreads)
    QuantizeRowsKernel(const __nv_bfloat16* x, uint8_t* y, float* scales, int32_t rows, int64_t k) {
  __shared__ float warps[2][kMostThreads / 32];
  AllowNextKernel();
  WaitForPreviousKernel();
  const auto units = static_cast<int32_t>(k / 16);
  const auto threads = static_cast<int32_t>(blockDim.x);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  Fp8Unit next[kUnits];
  const auto load = [&](int32_t row) {
    const auto* const in = reinterpret_cast<const uint4*>(x + row * k);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int32_t i = u * threads + thread;
      if (i < units) next[u] = {in[2 * i], in[2 * i + 1]};
    }
  };
  const auto step = static_cast<int32_t>(gridDim.x);
  auto row = static_cast<int32_t>(blockIdx.x);
  load(row);
#pragma unroll 1
  for (int parity = 0; row < rows; row += step, parity ^= 1) {
    Fp8Unit kept[kUnits];
    __nv_bfloat162 most = __float2bfloat162_rn(0.0f);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      kept[u] = next[u];
      most = kept[u].Most(most);
    }
    if (row + step < rows) load(row + step);
    const float scale = ScaleOfRow(BlockMost(MostOf(most), warps[parity]));
    const float inverse = 1.0f / scale;
    if (thread == 0) scales[row] = scale;
    auto* const out = reinterpret_cast<uint4*>(y + row * k);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int32_t i = u * threads + thread;
      if (i < units) out[i] = kept[u].Rounded(inverse);
    }
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

// As many blocks as run at a time; `threads` of each, with 32 registers or, if !narrow, 64.
int32_t BlocksFor(int32_t rows, int64_t threads, bool narrow) {
  int device = 0, processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const auto resident = static_cast<int32_t>((narrow ? 2048 : 1024) / threads);
  return std::min(rows, resident * processors);
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
  const int each = units <= kMostThreads ? 1 : units <= 2 * kMostThreads ? 2 : kMostUnits;
  const int64_t threads = ((units + each - 1) / each + 31) / 32 * 32;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(BlocksFor(rows, threads, each == 1)));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  cudaLaunchAttribute overlap;
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = 1;
  const auto* const from = static_cast<const __nv_bfloat16*>(x);
  auto* const to = static_cast<uint8_t*>(y);
  if (each == 1) {
    cudaLaunchKernelEx(&config, QuantizeRowsKernel<1>, from, to, scales, rows, k);
  } else if (each == 2) {
    cudaLaunchKernelEx(&config, QuantizeRowsKernel<2>, from, to, scales, rows, k);
  } else {
    cudaLaunchKernelEx(&config, QuantizeRowsKernel<kMostUnits>, from, to, scales, rows, k);
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
