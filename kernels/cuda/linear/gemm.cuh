// The kernel for many rows: a persistent, warp-specialised product with everything that follows it in its epilogue.
//
// A tile is 128 weight rows (the tensor core's A operand: M) x kTokens tokens (B: N), 64 or 128 of K a stage. Two warpgroups of
// consumers take 64 weight rows each; one thread of a third group keeps kStages stages in flight by the bulk copy engine. Two
// CTAs of a cluster take neighbouring weight rows and the same tokens: each loads half of the tokens' box into the shared memory
// of both (multicast), so that a stage costs 32 instead of 48 KiB of L2 traffic. Stages run on across tiles: while a warpgroup
// stores its tile, the next one's operands arrive, and the other warpgroup, which is free to lag by as many stages as
// there are, still multiplies.
//
// Epilogue: sums are scaled, biased, gated (rows g and g + 8 of a fragment are gate and up), transposed into shared memory by
// stmatrix and stored by the copy engine, which also clips at the matrix's edges and adds to f32 rows in L2 (one addition per
// element: the same bits every time).
//
// FP8: Hopper adds FP8 products in fewer bits than f32, so sums of 256 of K (128 where blocks have scales) are added to f32 by
// ordinary instructions, while the other warpgroup has the tensor cores. NVFP4 and FP8 weights with bf16 activations are widened in
// registers, under the products of the stage before: exactly, but for FP8's block scales, which are rounded to bf16.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/gemm_kernels.h"
#include "kernels/cuda/linear/gemm_ptx.cuh"
#include "kernels/cuda/linear/gemm_wgmma.cuh"
#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/wgmma.cuh"
#include "kernels/cuda/linear/widen.cuh"

namespace aisp::cuda {

template <GemmFormat kFormatV, int kTokensV, int kStagesV, int kBuffersV>
struct GemmConfig {
  static constexpr GemmFormat kFormat = kFormatV;
  static constexpr int kTokens = kTokensV;
  static constexpr int kStages = kStagesV;
  static constexpr int kBuffers = kBuffersV;  // of a warpgroup's output
  static constexpr bool kFp8 = kFormat == GemmFormat::kFp8 || kFormat == GemmFormat::kFp8Block;
  static constexpr bool kBlockScales = kFormat == GemmFormat::kFp8Block;
  static constexpr bool kNvfp4 = kFormat == GemmFormat::kNvfp4;
  // FP8 weights that are widened in registers.
  static constexpr bool kWideBlock = kFormat == GemmFormat::kFp8BlockBf16;
  static constexpr bool kWide8 = kFormat == GemmFormat::kFp8Bf16 || kWideBlock;
  static constexpr bool kRowScales =
      kNvfp4 || kFormat == GemmFormat::kFp8 || kFormat == GemmFormat::kFp8Bf16;
  static constexpr int kStageK = kFp8 ? 128 : 64;
  static constexpr int kInputBytes = kTokens * 128;
  static constexpr int kWeightRowBytes = kWide8 ? 64 : 128;  // of a stage
  static constexpr int kWeightBytes = kNvfp4 ? 2 * kNvfp4ChunkBytes : kGemmRows * kWeightRowBytes;
  static constexpr int kLoadedBytes = kInputBytes + kWeightBytes;
  static constexpr int kStageBytes = (kLoadedBytes + 1023) / 1024 * 1024;
  static constexpr int kBufferBytes = 8192;
  static constexpr int kStagingBytes = 2 * kBuffers * kBufferBytes;
  static constexpr int kSharedBytes = kStages * kStageBytes + kStagingBytes + 1024 + 16 * kStages;
  static constexpr int kSums = kTokens / 2;
  // FP8: so many parts of the tokens are summed one after the other, so that both sums fit the registers.
  static constexpr int kParts = kTokens > 192 ? 2 : 1;
  static constexpr int kPartSums = kSums / kParts;
  static constexpr int kAdded = kFormat == GemmFormat::kFp8 ? 2 : 1;  // stages
  static_assert(kTokens % 64 == 0 && kSharedBytes <= 232448);
};

// Shared memory of a CTA by address; the same in both CTAs of a cluster.
template <class C>
struct GemmShared {
  uint32_t base;  // 1024-aligned
  __device__ uint32_t Input(int stage) const { return base + stage * C::kStageBytes; }
  __device__ uint32_t Weight(int stage) const { return Input(stage) + C::kInputBytes; }
  __device__ uint32_t Output(int group) const {
    return base + C::kStages * C::kStageBytes + group * C::kBuffers * C::kBufferBytes;
  }
  __device__ uint32_t Full(int stage) const { return Output(2) + 8 * stage; }
  __device__ uint32_t Empty(int stage) const { return Full(C::kStages) + 8 * stage; }
};

// A place in the ring of stages.
template <int kStages>
struct StageCursor {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct GemmTile {
  int32_t token = 0;  // the first
  int32_t row = 0;    // the CTA's first
};

template <class C>
__device__ __forceinline__ GemmTile TileAt(const GemmParams& p, int32_t index, int32_t rank) {
  const int32_t in_group = p.group_tokens * p.row_pairs;
  const int32_t group = index / in_group;
  const int32_t first = group * p.group_tokens;
  const int32_t width = min(p.group_tokens, p.token_tiles - first);
  const int32_t rest = index - group * in_group;
  return {(first + rest % width) * C::kTokens, (rest / width * kGemmCluster + rank) * kGemmRows};
}

// ---- producer: one thread ----

template <class C>
__device__ __forceinline__ void LoadWeightStage(const GemmShared<C>& shared, int stage, int32_t row,
                                                int32_t k_unit, const GemmParams& p,
                                                const CUtensorMap* weight, uint64_t policy) {
  if constexpr (C::kNvfp4) {
#pragma unroll
    for (int g = 0; g < 2; ++g) {
      // A tile may reach beyond the last row group: its surplus rows are computed from that group and not stored.
      const int64_t group = min(row / kNvfp4GroupRows + g, p.row_groups - 1);
      BulkLoad(shared.Weight(stage) + g * kNvfp4ChunkBytes,
               p.nvfp4 + group * p.group_bytes + static_cast<int64_t>(k_unit) * kNvfp4ChunkBytes,
               kNvfp4ChunkBytes, shared.Full(stage), policy);
    }
  } else {
    TensorLoad(shared.Weight(stage), weight, k_unit * C::kStageK, row, shared.Full(stage), policy);
  }
}

// What the tile will be added to, into L2: a box of 32 tokens x 32 columns in each of the last stages (`k` < 0).
template <class C>
__device__ __forceinline__ void PrefetchOutput(const CUtensorMap* output, const GemmTile& tile,
                                               int32_t k) {
  constexpr int kColumns = kGemmRows / 32;
  const int32_t box = k + C::kTokens / 32 * kColumns;
  if (box < 0) return;
  TensorPrefetch(output, tile.row + box % kColumns * 32, tile.token + box / kColumns * 32);
}

template <class C>
__device__ __forceinline__ void ProduceTiles(const GemmShared<C>& shared, int32_t rank,
                                             int32_t first_tile, int32_t tile_step,
                                             const GemmParams& p, const CUtensorMap* weight,
                                             const CUtensorMap* input, const CUtensorMap* output) {
  const int32_t tiles = p.token_tiles * p.row_pairs;
  const uint32_t half = static_cast<uint32_t>(rank) * (C::kInputBytes / 2);
  const int32_t half_token = rank * (C::kTokens / 2);
  // All token tiles read a weight tile at about the same time; the activations are read again for the next one.
  const uint64_t weight_policy = EvictFirstPolicy();
  StageCursor<C::kStages> at;
  // Weights of the first stages do not depend on the kernel before this one.
  const int32_t ahead = min(p.k_units, C::kStages);
  if (first_tile < tiles) {
    const GemmTile tile = TileAt<C>(p, first_tile, rank);
    for (int32_t k = 0; k < ahead; ++k) {
      BarrierArriveExpect(shared.Full(k), C::kLoadedBytes);
      LoadWeightStage(shared, k, tile.row, k, p, weight, weight_policy);
    }
  }
  WaitForPreviousKernel();
  bool first = true;
  for (int32_t index = first_tile; index < tiles; index += tile_step, first = false) {
    const GemmTile tile = TileAt<C>(p, index, rank);
    for (int32_t k = 0; k < p.k_units; ++k) {
      if (!first || k >= ahead) {
        BarrierWait(shared.Empty(at.stage), at.parity ^ 1);
        BarrierArriveExpect(shared.Full(at.stage), C::kLoadedBytes);
        LoadWeightStage(shared, at.stage, tile.row, k, p, weight, weight_policy);
      }
      TensorLoadMulticast(shared.Input(at.stage) + half, input, k * C::kStageK,
                          tile.token + half_token, shared.Full(at.stage), 3);
      if (p.store == Store::kAccumulateF32) PrefetchOutput<C>(output, tile, k - p.k_units);
      at.Next();
    }
  }
}

// ---- consumers ----

__device__ __forceinline__ uint32_t PackBf16Pair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Rows 64 or 128 bytes long, as the copy engine reads and writes them: 16-byte pieces exchanged within 1024 bytes.
template <int kRowBytes>
__device__ __forceinline__ uint32_t Swizzled(uint32_t base, int row, int piece) {
  if constexpr (kRowBytes == 128) return base + row * 128 + ((piece ^ (row % 8)) * 16);
  return base + row * 64 + ((piece ^ (row / 2 % 4)) * 16);
}

// Both CTAs load into this stage of both: tells both.
template <class C>
__device__ __forceinline__ void ReleaseStage(const GemmShared<C>& shared, int stage, int lane) {
  if (lane < kGemmCluster) BarrierArriveAt(shared.Empty(stage), lane);
}

template <class C>
__device__ __forceinline__ void MultiplyBf16(const GemmShared<C>& shared, const GemmParams& p,
                                             int group, int lane, StageCursor<C::kStages>& at,
                                             float (&sums)[C::kSums]) {
  int previous = 0;
  for (int32_t k = 0; k < p.k_units; ++k) {
    BarrierWait(shared.Full(at.stage), at.parity);
    WgmmaFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      WideWgmma<C::kTokens>::Bf16(
          sums, SwizzledDescriptor(shared.Weight(at.stage) + group * 64 * 128, i * 32),
          SwizzledDescriptor(shared.Input(at.stage), i * 32), k > 0 || i > 0);
    }
    WgmmaCommit();
    WgmmaWait<1>();
    if (k > 0) ReleaseStage(shared, previous, lane);
    previous = at.stage;
    at.Next();
  }
  WgmmaWait<0>();
  ReleaseStage(shared, previous, lane);
}

// A lane's part of a group's 64 rows x 64 of K as A fragments of four steps: NVFP4, 16 bytes of elements and 8 of scales.
__device__ __forceinline__ void WidenNvfp4Stage(uint32_t chunk, int warp, int lane,
                                                uint32_t (&a)[4][4]) {
  const uint4 words = LoadShared16(chunk + (warp * 32 + lane) * 16);
  const uint2 scales = LoadShared8(chunk + kNvfp4DataBytes + (warp * 8 + lane / 4) * 8);
  const uint32_t word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    WidenNvfp4(word[i], WidenNvfp4Scale(scales.x, i), WidenNvfp4Scale(scales.y, i), a[i]);
  }
}
// FP8: rows of 64 bytes.
__device__ __forceinline__ void WidenFp8Stage(uint32_t rows, int warp, int lane,
                                              uint32_t (&a)[4][4]) {
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    uint32_t q[4];
    LoadMatrix4(q, Swizzled<64>(rows, warp * 16 + lane % 16, 2 * c + lane / 16));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      WidenFp8(q[2 * h], a[2 * c + h][0], a[2 * c + h][2]);
      WidenFp8(q[2 * h + 1], a[2 * c + h][1], a[2 * c + h][3]);
    }
  }
}

// The scales of a warp's two groups of eight rows in block `k_block`, each a pair of bf16.
__device__ __forceinline__ uint2 LoadBlockScales(const GemmParams& p, int32_t row,
                                                 int32_t k_block) {
  const int32_t last = (p.n - 1) / 8;
  const int64_t columns = p.scale_columns;
  const int32_t column = min(k_block, p.scale_columns - 1);
  const float top = __ldg(p.scales + min(row / 8, last) * columns + column);
  const float bottom = __ldg(p.scales + min(row / 8 + 1, last) * columns + column);
  return make_uint2(PackBf16Pair(top, top), PackBf16Pair(bottom, bottom));
}

// The weight widened in registers. Stages in pairs (K is padded), so that the fragments' registers alternate.
template <class C>
__device__ __forceinline__ void MultiplyWidened(const GemmShared<C>& shared, const GemmParams& p,
                                                int group, int warp, int lane, int32_t row,
                                                StageCursor<C::kStages>& at,
                                                float (&sums)[C::kSums]) {
  int previous = 0;
  uint32_t a[2][4][4];
  for (int32_t k = 0; k < p.k_units; k += 2) {
    uint2 scales;
    if constexpr (C::kWideBlock) scales = LoadBlockScales(p, row, k / 2);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      BarrierWait(shared.Full(at.stage), at.parity);
      const uint32_t weight = shared.Weight(at.stage) + group * (C::kWeightBytes / 2);
      if constexpr (C::kNvfp4) {
        WidenNvfp4Stage(weight, warp, lane, a[j]);
      } else {
        WidenFp8Stage(weight, warp, lane, a[j]);
      }
      if constexpr (C::kWideBlock) {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          a[j][i / 4][i % 4] = MulBf16x2(a[j][i / 4][i % 4], i % 2 == 0 ? scales.x : scales.y);
        }
      }
      WgmmaFence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        WideWgmma<C::kTokens>::Bf16(sums, a[j][i],
                                    SwizzledDescriptor(shared.Input(at.stage), i * 32),
                                    k > 0 || j > 0 || i > 0);
      }
      WgmmaCommit();
      WgmmaWait<1>();
      if (k > 0 || j > 0) ReleaseStage(shared, previous, lane);
      previous = at.stage;
      at.Next();
    }
  }
  WgmmaWait<0>();
  ReleaseStage(shared, previous, lane);
}

// Starts the products of a stage with part `part` of the tile's tokens.
template <class C>
__device__ __forceinline__ void StartFp8(const GemmShared<C>& shared, int stage, int group,
                                         int part, bool keep, float (&sums)[C::kPartSums]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    WideWgmma<C::kTokens / C::kParts>::Fp8(
        sums, SwizzledDescriptor(shared.Weight(stage) + group * 64 * 128, i * 32),
        SwizzledDescriptor(shared.Input(stage), part * (C::kInputBytes / C::kParts) + i * 32),
        keep || i > 0);
  }
  WgmmaCommit();
}

// kAdded stages between two additions.
template <class C>
__device__ __forceinline__ void AddFp8Stages(const GemmShared<C>& shared,
                                             const int (&stages)[C::kAdded], int group, int lane,
                                             const float (&scale)[2], float (&sums)[C::kSums]) {
#pragma unroll
  for (int part = 0; part < C::kParts; ++part) {
    float added[C::kPartSums];
    WgmmaFence();
#pragma unroll
    for (int s = 0; s < C::kAdded; ++s) StartFp8(shared, stages[s], group, part, s > 0, added);
    if constexpr (C::kAdded == 2) {
      WgmmaWait<1>();
      if (part == C::kParts - 1) ReleaseStage(shared, stages[0], lane);
    }
    WgmmaWait<0>();
    if (part == C::kParts - 1) ReleaseStage(shared, stages[C::kAdded - 1], lane);
#pragma unroll
    for (int i = 0; i < C::kPartSums; ++i) {
      float& sum = sums[part * C::kPartSums + i];
      sum = C::kBlockScales ? fmaf(added[i], scale[i / 2 % 2], sum) : sum + added[i];
    }
  }
}

template <class C>
__device__ __forceinline__ void MultiplyFp8(const GemmShared<C>& shared, const GemmParams& p,
                                            int group, int lane, int32_t row,
                                            StageCursor<C::kStages>& at, float (&sums)[C::kSums]) {
#pragma unroll
  for (int i = 0; i < C::kSums; ++i) sums[i] = 0.0f;
  const int32_t last = (p.n - 1) / 8;
  const float* const top = p.scales + static_cast<int64_t>(min(row / 8, last)) * p.scale_columns;
  const float* const bottom =
      p.scales + static_cast<int64_t>(min(row / 8 + 1, last)) * p.scale_columns;
  for (int32_t k = 0; k < p.k_units; k += C::kAdded) {
    float scale[2] = {1.0f, 1.0f};
    if constexpr (C::kBlockScales) {
      scale[0] = __ldg(top + k);
      scale[1] = __ldg(bottom + k);
    }
    int stages[C::kAdded];
#pragma unroll
    for (int s = 0; s < C::kAdded; ++s) {
      BarrierWait(shared.Full(at.stage), at.parity);
      stages[s] = at.stage;
      at.Next();
    }
    AddFp8Stages(shared, stages, group, lane, scale, sums);
  }
}

// ---- epilogue ----

// v = {gate, gate, up, up}. Two quotients share a reciprocal: exponentials and reciprocals come from a unit that is 8 times slower
// than additions, and bound this epilogue. Below -40 SiLU is 0 to 15 digits.
__device__ __forceinline__ uint32_t GatedSilu(const float (&v)[4]) {
  const float a = 1.0f + __expf(-fmaxf(v[0], -40.0f));
  const float b = 1.0f + __expf(-fmaxf(v[1], -40.0f));
  const float inverse = Reciprocal(a * b);
  return PackBf16Pair(v[0] * v[2] * (b * inverse), v[1] * v[3] * (a * inverse));
}

// What a thread multiplies and adds: its two weight rows.
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

// Sums 4 j .. 4 j + 3: rows g and g + 8 of tokens 2 t and 2 t + 1.
template <class C>
__device__ __forceinline__ void Finish(const GemmParams& p, const RowScales& rows, int32_t token,
                                       const float* sums, float (&v)[4]) {
  float x_scale[2] = {1.0f, 1.0f};
  if constexpr (C::kFp8) {
#pragma unroll
    for (int h = 0; h < 2; ++h) x_scale[h] = __ldg(p.x_scales + min(token + h, p.rows - 1));
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    v[i] = fmaf(sums[i], rows.scale[i / 2] * x_scale[i % 2], rows.bias[i / 2]);
  }
}

// A chunk of tokens into a warpgroup's buffer.
template <class C, Store kStore, int kChunk>
__device__ __forceinline__ void WriteChunk(const GemmParams& p, const RowScales& rows,
                                           uint32_t buffer, int32_t token0, int warp, int lane,
                                           const float* sums) {
  if constexpr (kStore == Store::kBf16) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; j += 2) {
      float v[2][4];
      Finish<C>(p, rows, token0 + 8 * j + lane % 4 * 2, sums + 4 * j, v[0]);
      Finish<C>(p, rows, token0 + 8 * j + 8 + lane % 4 * 2, sums + 4 * j + 4, v[1]);
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
        Finish<C>(p, rows, token0 + 8 * (j + i) + lane % 4 * 2, sums + 4 * (j + i), v);
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
      Finish<C>(p, rows, token0 + 8 * j + lane % 4 * 2, sums + 4 * j, v);
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
  const int thread = threadIdx.x % 128;
  const int32_t row = tile.row + group * 64;
#pragma unroll
  for (int c = 0; c < C::kTokens / kChunk; ++c) {
    const int32_t token = tile.token + c * kChunk;
    const uint32_t buffer = shared.Output(group) + c % C::kBuffers * C::kBufferBytes;
    if (thread == 0) BulkStoreWaitRead<C::kBuffers - 1>();
    NamedBarrier(1 + group, 128);
    WriteChunk<C, kStore, kChunk>(p, rows, buffer, token, thread / 32, thread % 32,
                                  sums + c * kChunk / 2);
    FenceProxyAsync();
    NamedBarrier(1 + group, 128);
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

template <class C>
__device__ __forceinline__ void ConsumeTiles(const GemmShared<C>& shared, int32_t rank,
                                             int32_t first_tile, int32_t tile_step,
                                             const GemmParams& p, const CUtensorMap* output) {
  const int group = threadIdx.x / 128;
  const int warp = threadIdx.x / 32 % 4;
  const int lane = threadIdx.x % 32;
  const int32_t tiles = p.token_tiles * p.row_pairs;
  StageCursor<C::kStages> at;
  float sums[C::kSums];
  WaitForPreviousKernel();
  for (int32_t index = first_tile; index < tiles; index += tile_step) {
    const GemmTile tile = TileAt<C>(p, index, rank);
    const int32_t row = tile.row + group * 64 + warp * 16;
    const RowScales rows = LoadRowScales<C>(p, row + lane / 4);
    if constexpr (C::kFp8) {
      MultiplyFp8(shared, p, group, lane, row, at, sums);
    } else if constexpr (C::kNvfp4 || C::kWide8) {
      MultiplyWidened(shared, p, group, warp, lane, row, at, sums);
    } else {
      MultiplyBf16(shared, p, group, lane, at, sums);
    }
    if (p.store == Store::kBf16) {
      StoreTile<C, Store::kBf16>(shared, p, output, rows, group, tile, sums);
    } else if (p.store == Store::kSiluMulBf16) {
      StoreTile<C, Store::kSiluMulBf16>(shared, p, output, rows, group, tile, sums);
    } else {
      StoreTile<C, Store::kF32>(shared, p, output, rows, group, tile, sums);
    }
  }
  if (threadIdx.x % 128 == 0) BulkStoreWaitRead<0>();
}

template <class C>
__global__ void __cluster_dims__(kGemmCluster, 1, 1) __launch_bounds__(kGemmThreads, 1)
    GemmMainKernel(const __grid_constant__ CUtensorMap weight,
                   const __grid_constant__ CUtensorMap input,
                   const __grid_constant__ CUtensorMap output, const GemmParams p) {
  extern __shared__ uint8_t memory[];
  const GemmShared<C> shared{(SharedAddress(memory) + 1023) & ~1023u};
  if (threadIdx.x == 0) {
    for (int s = 0; s < C::kStages; ++s) {
      BarrierInit(shared.Full(s), 1);
      BarrierInit(shared.Empty(s), 2 * 4 * kGemmCluster);  // a warp each
    }
    BarrierInitFence();
    if constexpr (!C::kNvfp4) PrefetchTensorMap(&weight);
    PrefetchTensorMap(&input);
    PrefetchTensorMap(&output);
  }
  ClusterSync();
  AllowNextKernel();
  const auto rank = static_cast<int32_t>(blockIdx.x % kGemmCluster);
  const auto first = static_cast<int32_t>(blockIdx.x / kGemmCluster);
  const auto step = static_cast<int32_t>(gridDim.x / kGemmCluster);
  if (threadIdx.x >= 256) {
    ReleaseRegisters<40>();
    if (threadIdx.x == 256) ProduceTiles(shared, rank, first, step, p, &weight, &input, &output);
  } else {
    ClaimRegisters<232>();
    ConsumeTiles(shared, rank, first, step, p, &output);
  }
  __syncwarp();
  // The other CTA's copies and arrivals reach into this one's memory.
  ClusterSync();
}

// What the host has to know of an instance.
template <class C>
GemmKernel DescribeGemmKernel() {
  GemmKernel kernel;
  kernel.function = reinterpret_cast<const void*>(&GemmMainKernel<C>);
  kernel.format = C::kFormat;
  kernel.tokens = C::kTokens;
  kernel.stage_k = C::kStageK;
  kernel.step_k = C::kNvfp4 ? kNvfp4PadK : C::kWide8 ? 128 : C::kStageK * C::kAdded;
  kernel.stages = C::kStages;
  kernel.shared_bytes = C::kSharedBytes;
  kernel.weight_row_bytes = C::kNvfp4 ? 0 : C::kWeightRowBytes;
  return kernel;
}

}  // namespace aisp::cuda
