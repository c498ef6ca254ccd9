// Embedding, RMS norm, SiLU, copies of rows, conversions: one block per row.
#include "kernels/cuda/rows.h"

#include <cuda_fp8.h>

#include <algorithm>
#include <type_traits>

#include "common/check.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/fp8_unit.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int32_t TokenOf(const int32_t* tokens, const int32_t* slot_of_row,
                                           const int32_t* slot_tokens, int64_t vocabulary) {
  int32_t token = tokens[blockIdx.x];
  // Both loads are issued together instead of one after the other.
  const int32_t slot = slot_of_row != nullptr ? slot_of_row[blockIdx.x] : 0;
  if (token < 0) token = slot_tokens[slot];
  // A slot whose draw failed has no token; its row's result is discarded.
  return token < 0 || token >= vocabulary ? 0 : token;
}

// Loads four elements.
__device__ __forceinline__ float4 Load4(const float* x) {
  return *reinterpret_cast<const float4*>(x);
}
template <typename T>
__device__ __forceinline__ float4 Load4(const T* x) {
  const uint2 bits = *reinterpret_cast<const uint2*>(x);
  const T* v = reinterpret_cast<const T*>(&bits);
  return {ToFloat(v[0]), ToFloat(v[1]), ToFloat(v[2]), ToFloat(v[3])};
}

template <typename T>
__global__ void EmbeddingKernel(const T* table, int64_t vocabulary, int dim4, const int32_t* tokens,
                                const int32_t* slot_of_row, const int32_t* slot_tokens,
                                float4* hidden) {
  BeginOverlapped();
  const int64_t token = TokenOf(tokens, slot_of_row, slot_tokens, vocabulary);
#pragma unroll 4
  for (int i = threadIdx.x; i < dim4; i += kThreads)
    hidden[int64_t{blockIdx.x} * dim4 + i] = Load4(table + (token * dim4 + i) * 4);
}

template <typename T>
__global__ void OddEmbeddingKernel(const T* table, int64_t vocabulary, int64_t dim,
                                   const int32_t* tokens, const int32_t* slot_of_row,
                                   const int32_t* slot_tokens, float* hidden) {
  BeginOverlapped();
  const int64_t token = TokenOf(tokens, slot_of_row, slot_tokens, vocabulary);
  for (int64_t i = threadIdx.x; i < dim; i += kThreads)
    hidden[blockIdx.x * dim + i] = ToFloat(table[token * dim + i]);
}

template <typename T>
__device__ __forceinline__ void Store4(T* y, float4 v);
template <>
__device__ __forceinline__ void Store4(float* y, float4 v) {
  *reinterpret_cast<float4*>(y) = v;
}
template <>
__device__ __forceinline__ void Store4(__nv_bfloat16* y, float4 v) {
  __nv_bfloat162 pair[2] = {__floats2bfloat162_rn(v.x, v.y), __floats2bfloat162_rn(v.z, v.w)};
  *reinterpret_cast<uint2*>(y) = *reinterpret_cast<const uint2*>(pair);
}

__device__ __forceinline__ float4 Times(float4 a, float scale, float4 b) {
  return {a.x * scale * b.x, a.y * scale * b.y, a.z * scale * b.z, a.w * scale * b.w};
}

// A row stays in registers between sum and product. The limit is bytes in flight, so threads use
// few registers (at least five rows per multiprocessor), and weights, which earlier kernels never
// write, are loaded before the wait.
constexpr int kNormVectors = 4;  // per thread
constexpr int kNormMostThreads = 1024;
constexpr unsigned kManyMostThreads = 256;

__device__ __forceinline__ void LoadGain(const float* weight, int dim4,
                                         float4 (&gain)[kNormVectors]) {
  const auto* w4 = reinterpret_cast<const float4*>(weight);
#pragma unroll
  for (int j = 0; j < kNormVectors; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    gain[j] = i < dim4 ? __ldg(w4 + i) : float4{};
  }
}

// For a row held by the block's threads.
template <typename T>
__device__ __forceinline__ void StoreNormed(const float4 (&kept)[kNormVectors],
                                            const float4 (&gain)[kNormVectors], T* row, int dim4,
                                            float inverse_dim, float epsilon) {
  __shared__ float scratch[32];
  float sum = 0;
#pragma unroll
  for (const float4& v : kept) sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  const float scale = rsqrtf(BlockSum(sum, scratch) * inverse_dim + epsilon);
#pragma unroll
  for (int j = 0; j < kNormVectors; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    if (i < dim4) Store4(row + i * 4, Times(kept[j], scale, gain[j]));
  }
}

template <typename X, typename T>
__global__ void __launch_bounds__(kNormMostThreads)
    RmsNormKernel(const X* x, int64_t x_stride, const int32_t* row_indices, const float* weight,
                  T* y, int64_t y_stride, int dim4, float inverse_dim, float epsilon) {
  float4 gain[kNormVectors], kept[kNormVectors];
  LoadGain(weight, dim4, gain);
  BeginOverlapped();
  const int64_t from = row_indices != nullptr ? row_indices[blockIdx.x] : blockIdx.x;
#pragma unroll
  for (int j = 0; j < kNormVectors; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    kept[j] = i < dim4 ? Load4(x + from * x_stride + i * 4) : float4{};
  }
  StoreNormed(kept, gain, y + blockIdx.x * y_stride, dim4, inverse_dim, epsilon);
}

__device__ __forceinline__ float Rounded(float v) {
  return __bfloat162float(__float2bfloat16_rn(v));
}
__device__ __forceinline__ uint32_t ToFp8(float4 v, float scale) {
  return ToE4M3x2(v.x * scale, v.y * scale) | ToE4M3x2(v.z * scale, v.w * scale) << 16;
}

// Packed rows have the elements of 16 permuted (Fp8Position): a thread's four alternate with those
// of the thread two further, so each thread stores half of both.
__device__ __forceinline__ void StorePermuted(uint8_t* row, int i, uint32_t own, uint32_t other) {
  static_assert(Fp8Position(0) == 1 && Fp8Position(1) == 3 && Fp8Position(2) == 5 &&
                Fp8Position(4) == 9 && Fp8Position(8) == 0 && Fp8Position(10) == 4);
  const int quad = i % 4;
  const uint32_t word = __byte_perm(own, other, quad < 2 ? 0x1504 : 0x7362);
  *reinterpret_cast<uint32_t*>(row + i / 4 * 16 + quad % 2 * 8 + quad / 2 * 4) = word;
}

// A block for each row, or (kMany) for every gridDim.x-th: then the next row is requested before
// this one is normed.
template <bool kMany>
__global__ void __launch_bounds__(kMany ? kManyMostThreads : kNormMostThreads, kMany ? 3 : 1)
    RoundedNormKernel(const float* x, int64_t x_stride, const float* weight, uint8_t* y,
                      float* scales, int rows, int dim4, float inverse_dim, float epsilon) {
  __shared__ float sums[32], largest[32];
  float4 gain[kNormVectors], next[kNormVectors];
  LoadGain(weight, dim4, gain);
  BeginOverlapped();
  const auto load = [&](int row) {
    const auto* x4 = reinterpret_cast<const float4*>(x + row * x_stride);
#pragma unroll
    for (int j = 0; j < kNormVectors; ++j) {
      const int i = j * blockDim.x + threadIdx.x;
      next[j] = i < dim4 ? x4[i] : float4{};
    }
  };
  const auto step = static_cast<int>(gridDim.x);
  auto row = static_cast<int>(blockIdx.x);
  load(row);
#pragma unroll 1
  do {
    float4 kept[kNormVectors];
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kNormVectors; ++j) {
      kept[j] = next[j];
      sum += kept[j].x * kept[j].x + kept[j].y * kept[j].y + kept[j].z * kept[j].z +
             kept[j].w * kept[j].w;
    }
    if (kMany && row + step < rows) load(row + step);
    const float norm = rsqrtf(BlockSum(sum, sums) * inverse_dim + epsilon);
    float most = 0;
#pragma unroll
    for (int j = 0; j < kNormVectors; ++j) {
      const float4 v = Times(kept[j], norm, gain[j]);
      kept[j] = {Rounded(v.x), Rounded(v.y), Rounded(v.z), Rounded(v.w)};
      most = fmaxf(most, fmaxf(fmaxf(fabsf(kept[j].x), fabsf(kept[j].y)),
                               fmaxf(fabsf(kept[j].z), fabsf(kept[j].w))));
    }
    most = BlockMost(most, largest);
    const float scale = ScaleOfRow(most);
    const float inverse = 1.0f / scale;
    if (threadIdx.x == 0) scales[row] = scale;
    uint8_t* const to = y + int64_t{row} * dim4 * 4;
#pragma unroll
    for (int j = 0; j < kNormVectors; ++j) {
      const int i = j * blockDim.x + threadIdx.x;
      const uint32_t own = ToFp8(kept[j], inverse);
      const uint32_t other = __shfl_xor_sync(0xffffffffu, own, 2);
      if (i < dim4) StorePermuted(to, i, own, other);
    }
    row += step;
  } while (kMany && row < rows);
}

template <typename T, typename Y>
__global__ void __launch_bounds__(kNormMostThreads)
    EmbeddingNormKernel(const T* table, int64_t vocabulary, int dim4, const int32_t* tokens,
                        const int32_t* slot_of_row, const int32_t* slot_tokens, float4* hidden,
                        const float* weight, Y* y, int64_t y_stride, float inverse_dim,
                        float epsilon) {
  float4 gain[kNormVectors], kept[kNormVectors];
  LoadGain(weight, dim4, gain);
  BeginOverlapped();
  const int64_t token = TokenOf(tokens, slot_of_row, slot_tokens, vocabulary);
#pragma unroll
  for (int j = 0; j < kNormVectors; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    kept[j] = i < dim4 ? Load4(table + (token * dim4 + i) * 4) : float4{};
  }
#pragma unroll
  for (int j = 0; j < kNormVectors; ++j) {
    const int i = j * blockDim.x + threadIdx.x;
    if (i < dim4) hidden[int64_t{blockIdx.x} * dim4 + i] = kept[j];
  }
  StoreNormed(kept, gain, y + blockIdx.x * y_stride, dim4, inverse_dim, epsilon);
}

template <typename X, typename T>
__global__ void OddRmsNormKernel(const X* x, int64_t x_stride, const int32_t* row_indices,
                                 const float* weight, T* y, int64_t y_stride, int64_t dim,
                                 float epsilon) {
  __shared__ float scratch[32];
  BeginOverlapped();
  const int64_t from = row_indices != nullptr ? row_indices[blockIdx.x] : blockIdx.x;
  const X* row = x + from * x_stride;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x) {
    const float v = ToFloat(row[i]);
    sum += v * v;
  }
  const float scale = rsqrtf(BlockSum(sum, scratch) / static_cast<float>(dim) + epsilon);
  for (int64_t i = threadIdx.x; i < dim; i += blockDim.x)
    y[blockIdx.x * y_stride + i] = FromFloat<T>(ToFloat(row[i]) * scale * weight[i]);
}

// Whether a row fits in a block's registers.
bool NormInRegisters(const RmsNormParams& p) {
  const int64_t dim = p.weight.shape[0];
  return dim % 4 == 0 && p.x.strides[0] % 4 == 0 && p.y.strides[0] % 4 == 0 &&
         reinterpret_cast<uintptr_t>(p.x.data) % 16 == 0 &&
         dim <= int64_t{4} * kNormVectors * kNormMostThreads;
}
unsigned NormThreads(int dim4) {
  return static_cast<unsigned>((dim4 + 32 * kNormVectors - 1) / (32 * kNormVectors) * 32);
}

template <typename X, typename T>
Status RmsNorm(const RmsNormParams& p, cudaStream_t stream) {
  const int64_t dim = p.weight.shape[0];
  const auto rows = static_cast<unsigned>(p.rows);
  if (NormInRegisters(p)) {
    const auto dim4 = static_cast<int>(dim / 4);
    return Check(LaunchOverlapped(RmsNormKernel<X, T>, rows, NormThreads(dim4), 0, stream,
                                  p.x.as<const X>(), p.x.strides[0], p.row_indices,
                                  p.weight.as<const float>(), static_cast<T*>(p.y.data),
                                  p.y.strides[0], dim4, 1.0f / static_cast<float>(dim), p.epsilon),
                 "RMS norm");
  }
  return Check(
      LaunchOverlapped(OddRmsNormKernel<X, T>, rows, kThreads, 0, stream, p.x.as<const X>(),
                       p.x.strides[0], p.row_indices, p.weight.as<const float>(),
                       static_cast<T*>(p.y.data), p.y.strides[0], dim, p.epsilon),
      "RMS norm");
}

template <typename T>
__global__ void SiluMulKernel(const float* x, T* y, int64_t dim) {
  BeginOverlapped();
  const float* row = x + blockIdx.x * 2 * dim;
  for (int64_t i = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; i < dim;
       i += int64_t{gridDim.y} * blockDim.x) {
    const float gate = row[i];
    y[blockIdx.x * dim + i] = FromFloat<T>(gate / (1.0f + expf(-gate)) * row[dim + i]);
  }
}

__global__ void SiluAddKernel(const float* x, const float* added, float* y, __nv_bfloat16* rounded,
                              int64_t dim) {
  BeginOverlapped();
  const int64_t row = blockIdx.x * dim;
  for (int64_t i = int64_t{blockIdx.y} * blockDim.x + threadIdx.x; i < dim;
       i += int64_t{gridDim.y} * blockDim.x) {
    const float v = added[row + i];
    const float sum = x[row + i] + v / (1.0f + expf(-v));
    y[row + i] = sum;
    if (rounded != nullptr) rounded[row + i] = __float2bfloat16_rn(sum);
  }
}

template <typename T>
__global__ void TapKernel(const float* from, int64_t from_stride, const int32_t* row_indices, T* to,
                          int64_t to_stride, int dim4) {
  BeginOverlapped();
  const int64_t row = row_indices != nullptr ? row_indices[blockIdx.x] : blockIdx.x;
#pragma unroll 4
  for (int i = threadIdx.x; i < dim4; i += kThreads)
    Store4(to + blockIdx.x * to_stride + i * 4, Load4(from + row * from_stride + i * 4));
}

template <typename T>
__global__ void OddTapKernel(const float* from, int64_t from_stride, const int32_t* row_indices,
                             T* to, int64_t to_stride, int dim) {
  BeginOverlapped();
  const int64_t row = row_indices != nullptr ? row_indices[blockIdx.x] : blockIdx.x;
  for (int i = threadIdx.x; i < dim; i += kThreads)
    to[blockIdx.x * to_stride + i] = FromFloat<T>(from[row * from_stride + i]);
}

template <typename T>
Status Tap(const TapParams& p, const int32_t* row_indices, unsigned rows, cudaStream_t stream) {
  const auto dim = static_cast<int>(p.from.cols());
  const bool whole = dim % 4 == 0 && p.from.strides[0] % 4 == 0 && p.to.strides[0] % 4 == 0 &&
                     reinterpret_cast<uintptr_t>(p.to.data) % 16 == 0;
  return Check(LaunchOverlapped(whole ? TapKernel<T> : OddTapKernel<T>, rows, kThreads, 0, stream,
                                p.from.as<const float>(), p.from.strides[0], row_indices,
                                static_cast<T*>(p.to.data), p.to.strides[0], whole ? dim / 4 : dim),
               "copy of rows");
}

__global__ void SpreadKernel(const float* from, int64_t from_stride, const int32_t* columns,
                             float* to, int64_t to_stride, int count) {
  BeginOverlapped();
  for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < count; i += gridDim.y * blockDim.x)
    to[blockIdx.x * to_stride + columns[i]] = from[blockIdx.x * from_stride + i];
}

template <typename From, typename To>
__global__ void ConvertKernel(const From* from, To* to, int64_t count) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x)
    to[i] = FromFloat<To>(ToFloat(from[i]));
}

template <typename From>
void Convert(const From* from, void* to, DType to_type, int64_t count, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(std::min<int64_t>((count + 255) / 256, 4096));
  if (to_type == DType::kBF16) {
    ConvertKernel<<<blocks, 256, 0, stream>>>(from, static_cast<__nv_bfloat16*>(to), count);
  } else {
    ConvertKernel<<<blocks, 256, 0, stream>>>(from, static_cast<float*>(to), count);
  }
}

template <typename T, typename Y>
Status EmbeddingNorm(const EmbeddingParams& p, const T* table, cudaStream_t stream) {
  const int64_t dim = p.table.cols();
  const auto dim4 = static_cast<int>(dim / 4);
  // Prefers shared memory, so that the multiprocessor is ready for the next layer, which starts
  // beside this kernel.
  AISP_RETURN_IF_ERROR(Check(cudaFuncSetAttribute(EmbeddingNormKernel<T, Y>,
                                                  cudaFuncAttributePreferredSharedMemoryCarveout,
                                                  cudaSharedmemCarveoutMaxShared),
                             "asking for shared memory"));
  return Check(
      LaunchOverlapped(EmbeddingNormKernel<T, Y>, static_cast<unsigned>(p.rows), NormThreads(dim4),
                       0, stream, table, p.table.rows(), dim4, p.tokens, p.slot_of_row,
                       p.slot_tokens, static_cast<float4*>(p.hidden.data),
                       p.norm.weight.as<const float>(), static_cast<Y*>(p.norm.y.data),
                       p.norm.y.strides[0], 1.0f / static_cast<float>(dim), p.norm.epsilon),
      "embedding and norm");
}

}  // namespace

Status LaunchEmbedding(const EmbeddingParams& p, cudaStream_t stream) {
  const int64_t dim = p.table.cols();
  const auto rows = static_cast<unsigned>(p.rows);
  const bool normed = p.norm.x.data != nullptr && NormInRegisters(p.norm);
  const auto launch = [&](auto* table) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(table)>>;
    if (normed) {
      return p.norm.y.dtype == DType::kBF16 ? EmbeddingNorm<T, __nv_bfloat16>(p, table, stream)
                                            : EmbeddingNorm<T, float>(p, table, stream);
    }
    if (dim % 4 == 0) {
      return Check(
          LaunchOverlapped(EmbeddingKernel<T>, rows, kThreads, 0, stream, table, p.table.rows(),
                           static_cast<int>(dim / 4), p.tokens, p.slot_of_row, p.slot_tokens,
                           static_cast<float4*>(p.hidden.data)),
          "embedding");
    }
    return Check(
        LaunchOverlapped(OddEmbeddingKernel<T>, rows, kThreads, 0, stream, table, p.table.rows(),
                         dim, p.tokens, p.slot_of_row, p.slot_tokens, p.hidden.as<float>()),
        "embedding");
  };
  const auto embed = [&] {
    switch (p.table.dtype) {
      case DType::kBF16:
        return launch(static_cast<const __nv_bfloat16*>(p.table.data));
      case DType::kF16:
        return launch(static_cast<const __half*>(p.table.data));
      default:
        return launch(static_cast<const float*>(p.table.data));
    }
  };
  AISP_RETURN_IF_ERROR(embed());
  return p.norm.x.data == nullptr || normed ? Status{} : LaunchRmsNorm(p.norm, stream);
}

Status LaunchRmsNorm(const RmsNormParams& p, cudaStream_t stream) {
  if (p.rows == 0) return {};
  const bool rounds = p.y.dtype == DType::kBF16;
  if (p.x.dtype == DType::kBF16) {
    return rounds ? RmsNorm<__nv_bfloat16, __nv_bfloat16>(p, stream)
                  : RmsNorm<__nv_bfloat16, float>(p, stream);
  }
  return rounds ? RmsNorm<float, __nv_bfloat16>(p, stream) : RmsNorm<float, float>(p, stream);
}

Status LaunchRoundedNorm(const RmsNormParams& p, void* y, float* scales, cudaStream_t stream) {
  if (p.rows == 0) return {};
  const auto dim4 = static_cast<int>(p.weight.shape[0] / 4);
  AISP_CHECK(dim4 % 4 == 0 && dim4 <= kNormVectors * kNormMostThreads && p.row_indices == nullptr &&
             p.x.dtype == DType::kF32);
  const unsigned threads = NormThreads(dim4);
  int device = 0, processors = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const auto rows = static_cast<unsigned>(p.rows);
  // As many as run at a time.
  const unsigned blocks = 768 / threads * static_cast<unsigned>(processors);
  const bool many = threads <= kManyMostThreads && rows > 2 * blocks;
  return Check(
      LaunchOverlapped(many ? RoundedNormKernel<true> : RoundedNormKernel<false>,
                       many ? blocks : rows, threads, 0, stream, p.x.as<const float>(),
                       p.x.strides[0], p.weight.as<const float>(), static_cast<uint8_t*>(y), scales,
                       p.rows, dim4, 0.25f / static_cast<float>(dim4), p.epsilon),
      "RMS norm to e4m3");
}

Status LaunchTap(const TapParams& p, const int32_t* row_indices, int32_t rows,
                 cudaStream_t stream) {
  if (rows == 0) return {};
  const auto count = static_cast<unsigned>(rows);
  return p.to.dtype == DType::kBF16 ? Tap<__nv_bfloat16>(p, row_indices, count, stream)
                                    : Tap<float>(p, row_indices, count, stream);
}

Status LaunchSpread(const SpreadParams& p, int32_t rows, cudaStream_t stream) {
  if (rows == 0) return {};
  constexpr int64_t kEach = 4 * kThreads;
  const auto count = static_cast<int>(p.from.cols());
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((count + kEach - 1) / kEach));
  return Check(
      LaunchOverlapped(SpreadKernel, grid, kThreads, 0, stream, p.from.as<const float>(),
                       p.from.strides[0], p.columns, p.to.as<float>(), p.to.strides[0], count),
      "spread");
}

Status LaunchSiluMul(const SiluMulParams& p, cudaStream_t stream) {
  const int64_t dim = p.y.cols();
  const dim3 grid(static_cast<unsigned>(p.rows), static_cast<unsigned>((dim + 1023) / 1024));
  if (p.y.dtype == DType::kBF16) {
    return Check(
        LaunchOverlapped(SiluMulKernel<__nv_bfloat16>, grid, kThreads, 0, stream,
                         p.x.as<const float>(), static_cast<__nv_bfloat16*>(p.y.data), dim),
        "SiLU");
  }
  return Check(LaunchOverlapped(SiluMulKernel<float>, grid, kThreads, 0, stream,
                                p.x.as<const float>(), p.y.as<float>(), dim),
               "SiLU");
}

Status LaunchSiluAdd(const SiluAddParams& p, int32_t rows, cudaStream_t stream) {
  if (rows == 0) return {};
  const int64_t dim = p.y.cols();
  const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((dim + 1023) / 1024));
  return Check(LaunchOverlapped(SiluAddKernel, grid, kThreads, 0, stream, p.x.as<const float>(),
                                p.added.as<const float>(), p.y.as<float>(),
                                static_cast<__nv_bfloat16*>(p.rounded.data), dim),
               "SiLU to be added");
}

Status LaunchConvert(const void* from, DType from_type, void* to, DType to_type, int64_t count,
                     cudaStream_t stream) {
  switch (from_type) {
    case DType::kBF16:
      Convert(static_cast<const __nv_bfloat16*>(from), to, to_type, count, stream);
      break;
    case DType::kF16:
      Convert(static_cast<const __half*>(from), to, to_type, count, stream);
      break;
    default:
      Convert(static_cast<const float*>(from), to, to_type, count, stream);
      break;
  }
  return CheckLaunch("conversion");
}

}  // namespace aisp::cuda
