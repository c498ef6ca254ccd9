// The epilogue of the kernels for many rows (gemm.cuh): a warpgroup's sums to y, through shared
// memory and the copy engine.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/linear/gemm_config.cuh"
#include "kernels/cuda/linear/gemm_ptx.cuh"
#include "kernels/cuda/linear/ptx.cuh"

namespace aisp::cuda {

// v = {gate, gate, up, up}. Two quotients share a reciprocal: exponentials and reciprocals are 8
// times slower than additions and bound this epilogue. Below -40 SiLU is 0 to 15 digits.
__device__ __forceinline__ uint32_t GatedSilu(const float (&v)[4]) {
  const float a = 1.0f + __expf(-fmaxf(v[0], -40.0f));
  const float b = 1.0f + __expf(-fmaxf(v[1], -40.0f));
  const float inverse = Reciprocal(a * b);
  return PackBf16Pair(v[0] * v[2] * (b * inverse), v[1] * v[3] * (a * inverse));
}

// Scales and biases of a thread's two weight rows.
struct RowScales {
  float scale[2] = {1.0f, 1.0f};
  float bias[2] = {0.0f, 0.0f};
};

template <class C>
__device__ __forceinline__ RowScales LoadRowScales(const GemmParams& p, int32_t top) {
  RowScales r;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int32_t row = min(top + 8 * i, p.n - 1);
    if constexpr (C::kRowScales) r.scale[i] = __ldg(p.scales + row);
    if (p.bias != nullptr) r.bias[i] = __ldg(p.bias + row);
  }
  return r;
}

// The scales of a tile's tokens. Each warpgroup requests them before its products and puts them in
// shared memory afterwards, so that the epilogue waits for none. A barrier of the warpgroup has to
// follow; the one in front of it is the last of the tile before.
template <class C>
struct TokenScales {
  static constexpr int kEach = C::kFp8 ? (C::kTokens + 127) / 128 : 1;
  float v[kEach] = {};

  // Bypasses L1: the previous kernel may have written them while this one was already running.
  __device__ __forceinline__ void Load(const GemmParams& p, const GemmTile& tile) {
    if constexpr (C::kFp8) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int32_t token = tile.token + i * 128 + static_cast<int32_t>(threadIdx.x % 128);
        v[i] = __ldcg(p.x_scales + min(token, p.rows - 1));
      }
    }
  }
  __device__ __forceinline__ void Put(const GemmShared<C>& shared) const {
    if constexpr (C::kFp8) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int at = i * 128 + static_cast<int>(threadIdx.x % 128);
        if (C::kTokens % 128 == 0 || at < C::kTokens)
          StoreShared4(shared.Scales(threadIdx.x / 128) + 4 * at, v[i]);
      }
    }
  }
};

// Sums 4 j .. 4 j + 3: rows g and g + 8 of tokens 2 t and 2 t + 1. `scales`: shared address of the
// first of these tokens' scales.
template <class C>
__device__ __forceinline__ void Finish(const GemmParams& p, const RowScales& rows, int32_t token,
                                       uint32_t scales, const float* sums, float (&v)[4]) {
  float x_scale[2] = {1.0f, 1.0f};
  if constexpr (C::kFp8) {
    const uint2 pair = LoadShared8(scales);
    x_scale[0] = __uint_as_float(pair.x);
    x_scale[1] = __uint_as_float(pair.y);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = fmaf(sums[i], rows.scale[i / 2] * x_scale[i % 2], rows.bias[i / 2]);
  }
}

// Writes a chunk of tokens to a warpgroup's buffer. `scales`: shared address of the chunk's scales.
template <class C, Store kStore, int kChunk>
__device__ __forceinline__ void WriteChunk(const GemmParams& p, const RowScales& rows,
                                           uint32_t buffer, int32_t token0, uint32_t scales,
                                           int warp, int lane, const float* sums) {
  const auto finish = [&](int j, float(&v)[4]) {
    const int token = 8 * j + lane % 4 * 2;
    Finish<C>(p, rows, token0 + token, scales + 4 * token, sums + 4 * j, v);
  };
  if constexpr (kStore == Store::kBf16) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; j += 2) {
      float v[2][4];
      finish(j, v[0]);
      finish(j + 1, v[1]);
      StoreMatrix4Transposed(
          Swizzled<128>(buffer, 8 * j + lane % 8 + lane / 16 * 8, warp * 2 + lane / 8 % 2),
          PackBf16Pair(v[0][0], v[0][1]), PackBf16Pair(v[0][2], v[0][3]),
          PackBf16Pair(v[1][0], v[1][1]), PackBf16Pair(v[1][2], v[1][3]));
    }
  } else if constexpr (kStore == Store::kSiluMulBf16) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; j += 4) {
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float v[4];
        finish(j + i, v);
        packed[i] = GatedSilu(v);
      }
      StoreMatrix4Transposed(Swizzled<64>(buffer, 8 * j + lane, warp), packed[0], packed[1],
                             packed[2], packed[3]);
    }
  } else {
    // Two boxes of 32 columns; a lane's rows g and g + 8 are columns of the same one.
    const uint32_t box = buffer + warp / 2 * (kChunk * 128);
    const int column = warp % 2 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
      float v[4];
      finish(j, v);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = column + i / 2 * 8;
        StoreShared4(Swizzled<128>(box, 8 * j + lane % 4 * 2 + i % 2, at / 4) + at % 4 * 4, v[i]);
      }
    }
  }
}

template <class C, Store kStore>
__device__ __forceinline__ void StoreTile(const GemmShared<C>& shared, const GemmParams& p,
                                          const CUtensorMap* output, const RowScales& rows,
                                          int group, const GemmTile& tile,
                                          const float (&sums)[C::kSums]) {
  constexpr int kChunk = GemmStoreTokens(kStore);
  // The wait below is for the chunk kBuffers before, also across tiles.
  static_assert(C::kTokens / kChunk % C::kBuffers == 0);
  const int thread = threadIdx.x % 128;
  const int32_t row = tile.row + group * 64;
#pragma unroll
  for (int c = 0; c < C::kTokens / kChunk; ++c) {
    const int32_t token = tile.token + c * kChunk;
    const uint32_t buffer = shared.Output(group) + c % C::kBuffers * C::kBufferBytes;
    if (thread == 0) BulkStoreWaitRead<C::kBuffers - 1>();
    NamedSync(1 + group, 128);
    WriteChunk<C, kStore, kChunk>(p, rows, buffer, token, shared.Scales(group) + 4 * c * kChunk,
                                  thread / 32, thread % 32, sums + c * kChunk / 2);
    FenceProxyAsync();
    NamedSync(1 + group, 128);
    if (thread == 0) {
      if constexpr (kStore == Store::kF32) {
        const bool add = p.store == Store::kAccumulateF32;
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const uint32_t box = buffer + b * (kChunk * 128);
          if (add) {
            TensorAdd(output, row + b * 32, token, box);
          } else {
            TensorStore(output, row + b * 32, token, box);
          }
        }
      } else {
        TensorStore(output, kStore == Store::kSiluMulBf16 ? row / 2 : row, token, buffer);
      }
      BulkStoreCommit();
    }
  }
}

}  // namespace aisp::cuda
