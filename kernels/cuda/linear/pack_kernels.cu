#include "kernels/cuda/linear/pack_kernels.h"

#include "kernels/cuda/linear/formats.cuh"
#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ int64_t PackedRow(const RowMap& map, int64_t row) {
  if (!map.gated) return map.offset + row;
  row += map.offset;
  return row / 8 * 16 + map.part * 8 + row % 8;
}

unsigned Blocks(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }

__device__ __forceinline__ int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

// Calls `launch` with a pointer of the source's element type.
template <typename Launch>
void WithType(const SourceRows& from, const Launch& launch) {
  switch (from.type) {
    case SourceType::kF32:
      return launch(static_cast<const float*>(from.data));
    case SourceType::kF16:
      return launch(static_cast<const __half*>(from.data));
    default:
      return launch(static_cast<const __nv_bfloat16*>(from.data));
  }
}

template <typename T>
__global__ void ToBf16(const T* from, int64_t k, RowMap map, __nv_bfloat16* to) {
  const int64_t row = blockIdx.x;
  const int64_t packed = PackedRow(map, row);
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    to[packed * k + i] = __float2bfloat16(ToFloat(from[row * k + i]));
  }
}

__device__ __forceinline__ int64_t Permuted(int64_t i) {
  return i / 16 * 16 + Fp8Position(static_cast<int>(i % 16));
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ToFp8Rows(const T* from, int64_t k, RowMap map, uint8_t* to, float* scales) {
  const int64_t row = blockIdx.x;
  const int64_t packed = PackedRow(map, row);
  float largest = 0.0f;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    largest = fmaxf(largest, fabsf(ToFloat(from[row * k + i])));
  }
  largest = BlockMax<kThreads>(largest);
  const float scale = largest > 0.0f ? largest / kFp8Max : 1.0f;
  if (threadIdx.x == 0) scales[packed] = scale;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    to[packed * k + Permuted(i)] = ToFp8(ToFloat(from[row * k + i]) / scale);
  }
}

// One block per 128 rows x 128 of K.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    ToFp8Blocks(const T* from, int64_t rows, int64_t k, RowMap map, uint8_t* to, float* scales) {
  const int64_t row0 = static_cast<int64_t>(blockIdx.y) * 128;
  const int64_t column0 = static_cast<int64_t>(blockIdx.x) * 128;
  const int64_t height = min(static_cast<int64_t>(128), rows - row0);
  const int64_t width = min(static_cast<int64_t>(128), k - column0);
  float largest = 0.0f;
  for (int64_t i = threadIdx.x; i < height * width; i += kThreads) {
    largest = fmaxf(largest, fabsf(ToFloat(from[(row0 + i / width) * k + column0 + i % width])));
  }
  largest = BlockMax<kThreads>(largest);
  const float scale = largest > 0.0f ? largest / kFp8Max : 1.0f;
  const int64_t columns = (k + 127) / 128;
  for (int64_t i = static_cast<int64_t>(threadIdx.x) * 8; i < height; i += kThreads * 8) {
    scales[PackedRow(map, row0 + i) / 8 * columns + blockIdx.x] = scale;
  }
  for (int64_t i = threadIdx.x; i < height * width; i += kThreads) {
    const int64_t row = row0 + i / width;
    const int64_t column = column0 + i % width;
    to[PackedRow(map, row) * k + Permuted(column)] = ToFp8(ToFloat(from[row * k + column]) / scale);
  }
}

__global__ void CopyFp8Rows(const uint8_t* from, int64_t k, const float* row_scales, float scale,
                            RowMap map, uint8_t* to, float* scales) {
  const int64_t row = blockIdx.x;
  const int64_t packed = PackedRow(map, row);
  if (scales != nullptr && threadIdx.x == 0) {
    scales[packed] = row_scales != nullptr ? row_scales[row] : scale;
  }
  for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
    to[packed * k + Permuted(i)] = from[row * k + i];
  }
}

__global__ void CopyBlockScales(const float* from, int64_t rows, int64_t columns, RowMap map,
                                float* to) {
  const int64_t i = ThreadIndex();
  const int64_t row = i / columns * 8;
  if (row >= rows) return;
  to[PackedRow(map, row) / 8 * columns + i % columns] = from[row / 128 * columns + i % columns];
}

// An e4m3 scale's magnitude as a packed scale byte; zero becomes the smallest scale (its block's
// elements are set to zero).
__device__ __forceinline__ uint8_t PackScale(uint8_t e4m3) {
  const int exponent = e4m3 >> 3 & 15;
  const int mantissa = e4m3 & 7;
  if (exponent > 0) return static_cast<uint8_t>((exponent - 7 + kNvfp4ScaleBias) * 8 + mantissa);
  if (mantissa == 0) return 0;
  const int shift = mantissa >= 4 ? 2 : mantissa >= 2 ? 1 : 0;  // 2^-9 times 1.., 2.., 4..
  return static_cast<uint8_t>((shift - 9 + kNvfp4ScaleBias) * 8 + ((mantissa << (3 - shift)) & 7));
}

// Stores 16 elements and their scale. The words are shared with the row eight below or above.
__device__ __forceinline__ void PutBlock(const uint8_t (&nibbles)[16], uint8_t e4m3, int64_t row,
                                         int64_t block, uint8_t* to, int64_t group_bytes) {
  uint8_t* const chunk = to + row / 64 * group_bytes + block / 4 * kNvfp4ChunkBytes;
  const auto warp = static_cast<int>(row % 64 / 16);
  const auto g = static_cast<int>(row % 8);
  const auto bottom = static_cast<int>(row / 8 % 2);
  const auto step = static_cast<int>(block % 4);
  const bool zero = (e4m3 & 0x7f) == 0;
  chunk[Nvfp4ScaleAt(warp * 8 + g, bottom, step)] = PackScale(e4m3);
  for (int t = 0; t < 4; ++t) {
    uint32_t word = 0;
    for (int high = 0; high < 2; ++high) {
      const int place = bottom + 2 * high;
      for (int odd = 0; odd < 2; ++odd) {
        if (!zero) word |= Nvfp4Bits(place, odd, nibbles[8 * high + 2 * t + odd]);
      }
    }
    atomicOr(reinterpret_cast<unsigned*>(chunk + (warp * 32 + g * 4 + t) * 16 + step * 4), word);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    ToNvfp4(const T* from, int64_t k, RowMap map, uint8_t* to, int64_t group_bytes, float* scales) {
  const int64_t row = blockIdx.x;
  const int64_t packed = PackedRow(map, row);
  float largest = 0.0f;
  for (int64_t i = threadIdx.x; i < k; i += kThreads) {
    largest = fmaxf(largest, fabsf(ToFloat(from[row * k + i])));
  }
  largest = BlockMax<kThreads>(largest);
  const float row_scale = largest > 0.0f ? largest / (kFp4Max * kFp8Max) : 1.0f;
  if (threadIdx.x == 0) scales[packed] = row_scale * kNvfp4Rescale;
  for (int64_t block = threadIdx.x; block < k / 16; block += kThreads) {
    float values[16];
    float block_largest = 0.0f;
    for (int i = 0; i < 16; ++i) {
      values[i] = ToFloat(from[row * k + block * 16 + i]);
      block_largest = fmaxf(block_largest, fabsf(values[i]));
    }
    const uint8_t scale = ToFp8(block_largest / kFp4Max / row_scale);
    const float divisor = FromFp8(scale) * row_scale;
    uint8_t nibbles[16];
    for (int i = 0; i < 16; ++i) nibbles[i] = divisor > 0.0f ? ToFp4(values[i] / divisor) : 0;
    PutBlock(nibbles, scale, packed, block, to, group_bytes);
  }
}

__global__ void CopyNvfp4Rows(const uint8_t* from, const uint8_t* block_scales, float scale,
                              int64_t k, RowMap map, uint8_t* to, int64_t group_bytes,
                              float* scales) {
  const int64_t row = blockIdx.x;
  const int64_t packed = PackedRow(map, row);
  if (threadIdx.x == 0) scales[packed] = scale * kNvfp4Rescale;
  for (int64_t block = threadIdx.x; block < k / 16; block += blockDim.x) {
    uint8_t nibbles[16];
    for (int i = 0; i < 8; ++i) {
      const uint8_t pair = from[row * (k / 2) + block * 8 + i];
      nibbles[2 * i] = pair & 15;
      nibbles[2 * i + 1] = pair >> 4;
    }
    PutBlock(nibbles, block_scales[row * (k / 16) + block], packed, block, to, group_bytes);
  }
}

__global__ void CopyBiasKernel(const float* from, int64_t rows, RowMap map, float* to) {
  const int64_t row = ThreadIndex();
  if (row < rows) to[PackedRow(map, row)] = from[row];
}

// ---- expanding; one thread per 16 elements of a row ----

__device__ __forceinline__ void StoreExpanded(const float (&values)[16], float scale,
                                              __nv_bfloat16* to) {
  uint4 packed[2];
  auto* const out = reinterpret_cast<__nv_bfloat162*>(packed);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    out[i] = __floats2bfloat162_rn(values[2 * i] * scale, values[2 * i + 1] * scale);
  }
  reinterpret_cast<uint4*>(to)[0] = packed[0];
  reinterpret_cast<uint4*>(to)[1] = packed[1];
}

__global__ void ExpandFp8(const uint8_t* from, const float* scales, bool blocks, int64_t begin,
                          int64_t rows, int64_t k, __nv_bfloat16* to) {
  const int64_t index = ThreadIndex();
  const int64_t per_row = k / 16;
  if (index >= rows * per_row) return;
  const int64_t row = begin + index / per_row;
  const int64_t group = index % per_row;
  const uint4 packed = *reinterpret_cast<const uint4*>(from + row * k + group * 16);
  const auto* const bytes = reinterpret_cast<const uint8_t*>(&packed);
  float values[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) values[i] = FromFp8(bytes[Fp8Position(i)]);
  const float scale = blocks ? scales[row / 8 * ((k + 127) / 128) + group / 8] : scales[row];
  StoreExpanded(values, scale, to + index * 16);
}

__global__ void ExpandNvfp4(const uint8_t* from, int64_t group_bytes, const float* scales,
                            int64_t begin, int64_t rows, int64_t k, __nv_bfloat16* to) {
  const int64_t index = ThreadIndex();
  const int64_t per_row = k / 16;
  if (index >= rows * per_row) return;
  const int64_t row = begin + index / per_row;
  const int64_t block = index % per_row;
  const uint8_t* const chunk = from + row / 64 * group_bytes + block / 4 * kNvfp4ChunkBytes;
  const auto warp = static_cast<int>(row % 64 / 16);
  const auto g = static_cast<int>(row % 8);
  const auto bottom = static_cast<int>(row / 8 % 2);
  const auto step = static_cast<int>(block % 4);
  const uint8_t e5m3 = chunk[Nvfp4ScaleAt(warp * 8 + g, bottom, step)];
  const float scale =
      ldexpf(static_cast<float>(8 + (e5m3 & 7)), (e5m3 >> 3) - kNvfp4ScaleBias - 3) *
      (scales[row] / kNvfp4Rescale);
  float values[16];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const uint32_t word =
        *reinterpret_cast<const uint32_t*>(chunk + (warp * 32 + g * 4 + t) * 16 + step * 4);
#pragma unroll
    for (int high = 0; high < 2; ++high) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        values[8 * high + 2 * t + odd] = FromFp4(Nvfp4Nibble(bottom + 2 * high, odd, word));
      }
    }
  }
  StoreExpanded(values, scale, to + index * 16);
}

// ---- what cuBLASLt's epilogues cannot do ----

// One thread per eight features of a token.
__global__ void SiluMulKernel(const __nv_bfloat16* x, const float* bias, int64_t count, int64_t n,
                              __nv_bfloat16* y, int64_t y_stride) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  const int64_t row = index / (n / 16);
  const int64_t group = index % (n / 16);
  const uint4* const in = reinterpret_cast<const uint4*>(x + row * n + group * 16);
  const uint4 v[2] = {in[0], in[1]};
  const auto* const values = reinterpret_cast<const __nv_bfloat16*>(v);
  uint4 packed;
  auto* const out = reinterpret_cast<__nv_bfloat16*>(&packed);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float gate = __bfloat162float(values[i]);
    float up = __bfloat162float(values[8 + i]);
    if (bias != nullptr) {
      gate += bias[group * 16 + i];
      up += bias[group * 16 + 8 + i];
    }
    out[i] = __float2bfloat16(gate / (1.0f + __expf(-gate)) * up);
  }
  // Rows of y may be unaligned if the caller strides them.
  __nv_bfloat16* const to = y + row * y_stride + group * 8;
  if (reinterpret_cast<uintptr_t>(to) % 16 == 0) {
    *reinterpret_cast<uint4*>(to) = packed;
  } else {
    for (int i = 0; i < 8; ++i) to[i] = out[i];
  }
}

template <typename T>
__global__ void SpreadBiasKernel(const float* bias, bool add, int64_t count, int64_t n, T* y,
                                 int64_t y_stride) {
  const int64_t index = ThreadIndex();
  if (index >= count) return;
  T* const to = y + index / n * y_stride + index % n;
  const float value = bias[index % n] + (add ? ToFloat(*to) : 0.0f);
  if constexpr (sizeof(T) == 2) {
    *to = __float2bfloat16(value);
  } else {
    *to = value;
  }
}

}  // namespace

void PackBf16(const SourceRows& from, const RowMap& map, void* to, cudaStream_t stream) {
  WithType(from, [&](const auto* data) {
    ToBf16<<<static_cast<unsigned>(from.rows), kThreads, 0, stream>>>(
        data, from.k, map, static_cast<__nv_bfloat16*>(to));
  });
}

void PackFp8(const SourceRows& from, const RowMap& map, void* to, float* scales,
             cudaStream_t stream) {
  WithType(from, [&](const auto* data) {
    ToFp8Rows<<<static_cast<unsigned>(from.rows), kThreads, 0, stream>>>(
        data, from.k, map, static_cast<uint8_t*>(to), scales);
  });
}

void PackFp8Block(const SourceRows& from, const RowMap& map, void* to, float* scales,
                  cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((from.k + 127) / 128),
                  static_cast<unsigned>((from.rows + 127) / 128));
  WithType(from, [&](const auto* data) {
    ToFp8Blocks<<<grid, kThreads, 0, stream>>>(data, from.rows, from.k, map,
                                               static_cast<uint8_t*>(to), scales);
  });
}

void CopyFp8(const SourceRows& from, const float* row_scales, float scale, const RowMap& map,
             void* to, float* scales, cudaStream_t stream) {
  CopyFp8Rows<<<static_cast<unsigned>(from.rows), kThreads, 0, stream>>>(
      static_cast<const uint8_t*>(from.data), from.k, row_scales, scale, map,
      static_cast<uint8_t*>(to), scales);
}

void CopyFp8Block(const SourceRows& from, const float* block_scales, const RowMap& map, void* to,
                  float* scales, cudaStream_t stream) {
  CopyFp8(from, nullptr, 1.0f, map, to, nullptr, stream);
  const int64_t columns = (from.k + 127) / 128;
  CopyBlockScales<<<Blocks((from.rows + 7) / 8 * columns), kThreads, 0, stream>>>(
      block_scales, from.rows, columns, map, scales);
}

void PackNvfp4(const SourceRows& from, const RowMap& map, void* to, int64_t group_bytes,
               float* scales, cudaStream_t stream) {
  WithType(from, [&](const auto* data) {
    ToNvfp4<<<static_cast<unsigned>(from.rows), kThreads, 0, stream>>>(
        data, from.k, map, static_cast<uint8_t*>(to), group_bytes, scales);
  });
}

void CopyNvfp4(const void* nibbles, const void* block_scales, float scale, int64_t rows, int64_t k,
               const RowMap& map, void* to, int64_t group_bytes, float* scales,
               cudaStream_t stream) {
  CopyNvfp4Rows<<<static_cast<unsigned>(rows), kThreads, 0, stream>>>(
      static_cast<const uint8_t*>(nibbles), static_cast<const uint8_t*>(block_scales), scale, k,
      map, static_cast<uint8_t*>(to), group_bytes, scales);
}

void CopyBias(const float* bias, int64_t rows, const RowMap& map, float* to, cudaStream_t stream) {
  CopyBiasKernel<<<Blocks(rows), kThreads, 0, stream>>>(bias, rows, map, to);
}

void ExpandRows(const PackedWeight& weight, int64_t begin, int64_t rows, void* to,
                cudaStream_t stream) {
  const auto* const from = static_cast<const uint8_t*>(weight.data);
  auto* const out = static_cast<__nv_bfloat16*>(to);
  const unsigned blocks = Blocks(rows * (weight.k / 16));
  if (weight.format == WeightFormat::kNvfp4) {
    ExpandNvfp4<<<blocks, kThreads, 0, stream>>>(from, Nvfp4GroupBytes(weight.k), weight.scales,
                                                 begin, rows, weight.k, out);
  } else {
    ExpandFp8<<<blocks, kThreads, 0, stream>>>(
        from, weight.scales, weight.format == WeightFormat::kFp8Block, begin, rows, weight.k, out);
  }
}

void SiluMulInterleaved(const void* x, const float* bias, int32_t rows, int64_t n, void* y,
                        int64_t y_stride, cudaStream_t stream) {
  const int64_t count = rows * (n / 16);
  SiluMulKernel<<<Blocks(count), kThreads, 0, stream>>>(static_cast<const __nv_bfloat16*>(x), bias,
                                                        count, n, static_cast<__nv_bfloat16*>(y),
                                                        y_stride);
}

void SpreadBias(const float* bias, bool add, bool f32, int32_t rows, int64_t n, void* y,
                int64_t y_stride, cudaStream_t stream) {
  const int64_t count = rows * n;
  if (f32) {
    SpreadBiasKernel<<<Blocks(count), kThreads, 0, stream>>>(bias, add, count, n,
                                                             static_cast<float*>(y), y_stride);
  } else {
    SpreadBiasKernel<<<Blocks(count), kThreads, 0, stream>>>(
        bias, add, count, n, static_cast<__nv_bfloat16*>(y), y_stride);
  }
}

}  // namespace aisp::cuda
