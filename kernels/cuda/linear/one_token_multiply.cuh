// The products of one token with a warp's block of a stage: 16 rows x C::kBlockK, by mma.sync.
//
// The instruction has room for eight tokens. bf16 and FP8 put the one token in all eight columns,
// so every column is the sum. NVFP4 puts the token's eight blocks of 16 (of 128 of K) in the
// columns. The product with one of the weight's blocks is a separate sum per row, to which its
// scale is applied, in the column of the same number; the other seven columns combine unrelated
// blocks and are ignored. So scales are applied to sums instead of weights, the token needs no
// zeros, and no product waits for another. Which lanes have the right columns is known statically:
// the others skip the addition.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/one_token_config.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/widen.cuh"

namespace aisp::cuda {

// As ptx::Mma, but the compiler may move it, to interleave products with conversions.
template <bool kF16>
__device__ __forceinline__ void TokenMma(float (&sums)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (kF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// A warp's sums of a tile: two chains, because products wait for each other; block scales: one, of
// scaled sums; NVFP4: one sum for each of the lane's rows and columns.
struct TokenSums {
  float v[2][4] = {};
};

// A block's operands in registers: all loads are issued before any use, and the stage is released
// when the last one is complete.

// bf16 and FP8: lines of 128 bytes, swizzled, in pieces of 32 bytes.
struct TokenLines {
  uint32_t q[4][4];
  uint4 token[4];

  // `tokens`: loads of the token; each covers two steps of 16.
  template <int kTokenLoads>
  __device__ __forceinline__ void Load(uint32_t block, uint32_t input, int lane) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      LoadMatrix4(q[i], block + lane % 16 * 128 + (((2 * i + lane / 16) ^ (lane % 8)) * 16));
    }
#pragma unroll
    for (int i = 0; i < kTokenLoads; ++i) token[i] = LoadShared16(input + i * 64 + lane % 4 * 16);
  }
  // Depends on all loads of the block, for BarrierArriveBehind.
  __device__ __forceinline__ uint32_t Loaded() const {
    return q[0][0] | q[1][0] | q[2][0] | q[3][0];
  }
};

template <class Release>
__device__ __forceinline__ void MultiplyBlockBf16(uint32_t block, uint32_t input, int lane,
                                                  const Release& release, TokenSums& sums) {
  TokenLines lines;
  lines.Load<2>(block, input, lane);
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    TokenMma<false>(sums.v[0], lines.q[i], lines.token[i / 2].x, lines.token[i / 2].y);
    TokenMma<false>(sums.v[1], lines.q[i + 1], lines.token[i / 2].z, lines.token[i / 2].w);
  }
  release(lines.Loaded());
}

template <class Release>
__device__ __forceinline__ void MultiplyBlockFp8(uint32_t block, uint32_t input, int lane,
                                                 const Release& release, TokenSums& sums) {
  TokenLines lines;
  lines.Load<4>(block, input, lane);
  uint32_t a[4][2][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      WidenFp8ToF16(lines.q[i][2 * h], a[i][h][0], a[i][h][2]);
      WidenFp8ToF16(lines.q[i][2 * h + 1], a[i][h][1], a[i][h][3]);
    }
    TokenMma<true>(sums.v[0], a[i][0], lines.token[i].x, lines.token[i].y);
    TokenMma<true>(sums.v[1], a[i][1], lines.token[i].z, lines.token[i].w);
  }
  release(lines.Loaded());
}

// Rows g and g + 8 have one scale each per block of 128.
__device__ __forceinline__ void AddScaledBlock(const TokenSums& block, float2 scale,
                                               TokenSums& sums) {
  sums.v[0][0] += scale.x * (block.v[0][0] + block.v[1][0]);
  sums.v[0][2] += scale.y * (block.v[0][2] + block.v[1][2]);
}

// 128 of K of 16 rows of NVFP4, and of the token.
struct Nvfp4Piece {
  uint4 words[2];   // one word per block of 16
  uint32_t scales;  // rows g and g + 8, blocks 2 t and 2 t + 1
  uint2 token;      // of block g

  __device__ __forceinline__ void Load(uint32_t block, uint32_t block_scales, uint32_t input,
                                       int lane) {
    words[0] = LoadShared16(block + lane * 16);
    words[1] = LoadShared16(block + 512 + lane * 16);
    scales = LoadShared4(block_scales + lane % 4 / 2 * 64 + lane / 4 * 8 + lane % 2 * 4);
    token = LoadShared8(input + lane * 8);
  }

  __device__ __forceinline__ uint32_t Word(int block) const {
    const uint4& four = words[block / 4];
    const uint32_t word[4] = {four.x, four.y, four.z, four.w};
    return word[block % 4];
  }

  // Elements are scaled by 2^-126, the token by 2^60, scales by 2^46; the rest is in the row's
  // scale.
  __device__ __forceinline__ void AddTo(TokenSums& sums, int lane) const {
    float scale[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scale[i] =
          __uint_as_float(ShiftByMultiplying(__byte_perm(scales, 0, 0x4440 + i), 20, 0x52000000u));
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t a[4];
      PlaceNvfp4(Word(j), a);
      float product[4] = {};
      TokenMma<false>(product, a, token.x, token.y);
      if (lane % 4 == j / 2) {
        sums.v[0][j % 2] += scale[j % 2] * product[j % 2];
        sums.v[0][j % 2 + 2] += scale[j % 2 + 2] * product[j % 2 + 2];
      }
    }
  }
};

// `loaded` is called while the block is being loaded from shared memory.
template <int kPieces, class Loaded, class Release>
__device__ __forceinline__ void MultiplyBlockNvfp4(uint32_t block, uint32_t block_scales,
                                                   uint32_t input, int lane, const Loaded& loaded,
                                                   const Release& release, TokenSums& sums) {
  Nvfp4Piece pieces[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    pieces[i].Load(block + i * 1024, block_scales + i * 128, input + i * 256, lane);
  }
  loaded();
#pragma unroll
  for (int i = 0; i < kPieces; ++i) pieces[i].AddTo(sums, lane);
  uint32_t all = 0;
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    all |= pieces[i].words[0].x | pieces[i].words[1].x | pieces[i].scales;
  }
  release(all);
}

}  // namespace aisp::cuda
