// One token and an NVFP4 weight: the products of one unit of work without a multiplication per weight for the block scales.
//
// The instruction has room for eight tokens where there is one. So its eight columns become the eight blocks of 16 of 128 of K:
// column b of the activations has the token's elements of block b and zeros elsewhere, and the sums of a row are those of its
// blocks. Their scales are applied to the sums: four multiply-adds of a lane for 128 of K instead of 32 multiplications.
//
// In shared memory each eight elements (16 bytes) of the token are followed by zeros up to kSpreadBytes. A core matrix (eight rows
// of 16 bytes) that begins 16 b bytes before them has them in row b: columns cost an offset of the descriptor, no copies.
//
// A fragment's elements are left times 2^-126 and the token is multiplied by 2^60, so that sums are far from f32's limits.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/multiply.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/linear/stream_kernels.h"
#include "kernels/cuda/linear/wgmma.cuh"
#include "kernels/cuda/linear/widen.cuh"

namespace aisp::cuda {

// A warp's part of a stage of the token.
template <class C>
struct SpreadInput {
  static constexpr int kQuads = C::kStageK / 256;
  uint4 quads[kQuads];

  // Not through L1: other multiprocessors have written it. Zeros beyond K.
  __device__ __forceinline__ void Load(const StreamParams& p, int32_t k_unit, int lane) {
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int32_t k = k_unit * C::kStageK + (i * 32 + lane) * 8;
      quads[i] = make_uint4(0, 0, 0, 0);
      if (k < p.k) {
        quads[i] =
            __ldcg(reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.x) + k));
      }
    }
  }
  __device__ __forceinline__ void Store(uint32_t to, int lane) const {
    constexpr uint32_t kTwoTo60 = 0x5d805d80;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      asm volatile(
          "st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to + (i * 32 + lane) * kSpreadBytes),
          "r"(MulBf16x2(quads[i].x, kTwoTo60)), "r"(MulBf16x2(quads[i].y, kTwoTo60)),
          "r"(MulBf16x2(quads[i].z, kTwoTo60)), "r"(MulBf16x2(quads[i].w, kTwoTo60))
          : "memory");
    }
  }
};

// Zeros between the elements, which nothing writes later: put there by all consumers, awaited by the warp that brings the token.
template <class C, class Shared>
__device__ __forceinline__ void ClearSpreadInputs(const Shared& shared) {
  constexpr int kQuads = C::kInputBytes / 16;
  for (int i = threadIdx.x; i < C::kStages * kQuads; i += C::kConsumers) {
    StoreShared16(shared.Input(i / kQuads) + i % kQuads * 16, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
  }
  FenceProxyAsync();
  NamedSync(1, C::kConsumers + 32);
}
template <class C>
__device__ __forceinline__ void AwaitSpreadZeros() {
  NamedSync(1, C::kConsumers + 32);
}

// The warp that brings the token, for units [begin, end) of one layer.
template <class C, class Shared>
__device__ __forceinline__ void BringSpreadUnits(const Shared& shared, const StreamParams& p,
                                                 int32_t begin, int32_t end, StagePlace<C>& place,
                                                 int lane) {
  constexpr int kAhead = 4;
  SpreadInput<C> ahead[kAhead];
  int32_t k_unit = begin % p.k_units;  // the next to load
  const auto load = [&](SpreadInput<C>& to) {
    to.Load(p, k_unit, lane);
    if (++k_unit == p.k_units) k_unit = 0;
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(ahead[i]);
  for (int32_t unit = begin; unit < end; unit += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (unit + i >= end) break;
      BarrierWait(shared.Empty(place.stage), place.parity ^ 1);
      ahead[i].Store(shared.Input(place.stage), lane);
      FenceProxyAsync();
      __syncwarp();
      if (lane == 0) BarrierArrive(shared.FullInput(place.stage));
      load(ahead[i]);
      place.Advance();
    }
  }
}

// The four scales of a lane's sums: row g and blocks 2 t, 2 t + 1, then row g + 8. Times 2^46.
__device__ __forceinline__ void AddScaled(uint32_t scales, const float (&blocks)[4],
                                          float (&sums)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t scale = __byte_perm(scales, 0, 0x4440 + i) * 0x00100000u + 0x52000000u;
    sums[i] += __uint_as_float(scale) * blocks[i];
  }
}

// Adds to `sums`: row g, blocks of even and of odd number, then row g + 8. All products are done at its end.
template <class C>
__device__ __forceinline__ void MultiplySpread(uint32_t weights, uint32_t input, int group,
                                               int warp, int lane, float (&sums)[4]) {
  constexpr int kChunks = C::kStageK / 64;
  // Without swizzle: core matrices along K are kSpreadBytes apart; along tokens there is one.
  constexpr uint32_t kStep = kSpreadBytes >> 4;
  uint64_t tokens;
  asm("mov.b64 %0, {%1, %2};"
      : "=l"(tokens)
      : "r"((Uniform(input) >> 4) | kStep << 16), "n"(kSpreadBytes >> 4));
  const uint32_t line = weights + group * kChunks * kNvfp4ChunkBytes;
  const uint32_t words_at = line + (warp * 32 + lane) * 16;
  const uint32_t scales_at = line + lane % 4 / 2 * kNvfp4ChunkBytes + kNvfp4DataBytes +
                             (warp * 8 + lane / 4) * 8 + lane % 2 * 4;
  uint4 words[2];
  uint32_t scales[2];
  uint32_t a[2][4][4];
  float blocks[2][4];
  words[0] = LoadShared16(words_at);
  scales[0] = LoadShared4(scales_at);
  const auto add = [&](int pair) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(blocks[pair % 2][i]));
    AddScaled(scales[pair % 2], blocks[pair % 2], sums);
  };
#pragma unroll
  for (int j = 0; j < kChunks; ++j) {
    if (j + 1 < kChunks) words[(j + 1) % 2] = LoadShared16(words_at + (j + 1) * kNvfp4ChunkBytes);
    if (j % 2 == 0 && j > 0) scales[j / 2 % 2] = LoadShared4(scales_at + j * kNvfp4ChunkBytes);
    const uint32_t word[4] = {words[j % 2].x, words[j % 2].y, words[j % 2].z, words[j % 2].w};
    WgmmaWait<1>();
#pragma unroll
    for (int k = 0; k < 4; ++k) PlaceNvfp4(word[k], a[j % 2][k]);
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int block = j % 2 * 4 + k;
      Wgmma<8>::Bf16(blocks[j / 2 % 2], a[j % 2][k],
                     Moved(tokens, (8 * j + 2 * k) * kSpreadBytes - 16 * block), block > 0);
    }
    WgmmaCommit();
    if (j % 2 == 0 && j > 0) {
      WgmmaWait<1>();
      add(j / 2 - 1);
    }
  }
  WgmmaWait<0>();
  add(kChunks / 2 - 1);
}

// A lane's sums of even and odd blocks, and the four lanes of a row: the token's sums where those of a kernel of eight tokens lie.
__device__ __forceinline__ void FoldSpread(float (&sums)[4], int lane) {
  float top = sums[0] + sums[1];
  float bottom = sums[2] + sums[3];
#pragma unroll
  for (int offset = 2; offset > 0; offset /= 2) {
    top += __shfl_xor_sync(0xffffffffu, top, offset);
    bottom += __shfl_xor_sync(0xffffffffu, bottom, offset);
  }
  const bool first = lane % 4 == 0;
  sums[0] = first ? top : 0.0f;
  sums[1] = 0.0f;
  sums[2] = first ? bottom : 0.0f;
  sums[3] = 0.0f;
}

}  // namespace aisp::cuda
