// Parts of the kernel for several layers (chain.cuh): the layout of shared memory, the words by which CTAs tell each other that
// something is there, and what happens to the sums of a finished tile.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/f16_input.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/split_join.cuh"
#include "kernels/cuda/linear/stream_config.cuh"

namespace aisp::cuda {

// Shared memory of a CTA by address.
template <class C>
struct ChainShared {
  static constexpr int kConverters = C::kF16 ? 64 : 0;  // the norms' warp and one more
  static constexpr int kThreads = C::kConsumers + 96 + kConverters / 2;
  static constexpr int kInputStages = C::kInputStages;
  // With as many stages both rings go round together: a stage has both, and is given back once.
  static constexpr bool kOneRing = ChainPlace<C>::kOneRing;
  static constexpr int kEmptyBarriers = C::kStages + (kOneRing ? 0 : kInputStages);
  static constexpr int kBarriers =
      C::kStages + kInputStages + kEmptyBarriers + (C::kF16 ? kInputStages : 0) + 1;
  // Stages of weights that a CTA has asked for and not got, at most. As many as keep memory busy and no more: whatever else the
  // chain reads (parts, counters, inputs) stands in the same queue.
  static constexpr int kInFlightBytes =
      (C::kFormat == StreamFormat::kBf16 || C::kFormat == StreamFormat::kFp8 ? 64 : 48) << 10;
  static constexpr int kInFlight = C::kWeightBytes * C::kStages < kInFlightBytes
                                       ? C::kStages
                                       : (kInFlightBytes + C::kWeightBytes - 1) / C::kWeightBytes;
  static constexpr int kInputStride = kOneRing ? C::kStageBytes : C::kInputBytes;
  static constexpr int kWeightStride = kOneRing ? C::kStageBytes : C::kWeightBytes;
  static constexpr int kWeightsAt = kOneRing ? C::kInputBytes : kInputStages * C::kInputBytes;
  static constexpr int kBarriersAt =
      kOneRing ? C::kStages * C::kStageBytes : kWeightsAt + C::kStages * C::kWeightBytes;
  static_assert(kOneRing || (C::kInputBytes % 1024 == 0 && C::kWeightBytes % 1024 == 0));
  static constexpr int kNormAt = kBarriersAt + 8 * (kBarriers + kBarriers % 2);
  static constexpr int kSquaresAt = kNormAt + 2 * 4 * C::kTokens;
  static constexpr int kJoinAt = kSquaresAt + C::kSplits * 2 * 4 * C::kTokens * (C::kRows / 16);
  static constexpr int kBytes = 1024 + kJoinAt + SplitJoin<C>::kBytes;

  uint32_t base;  // 1024-aligned
  __device__ uint32_t Input(int stage) const { return base + stage * kInputStride; }
  __device__ uint32_t Weight(int stage) const { return base + kWeightsAt + stage * kWeightStride; }
  __device__ uint32_t Barrier(int i) const { return base + kBarriersAt + 8 * i; }
  __device__ uint32_t FullWeight(int stage) const { return Barrier(stage); }
  __device__ uint32_t FullInput(int stage) const { return Barrier(C::kStages + stage); }
  __device__ uint32_t EmptyWeight(int stage) const {
    return Barrier(C::kStages + kInputStages + stage);
  }
  __device__ uint32_t EmptyInput(int stage) const {
    return EmptyWeight(kOneRing ? stage : C::kStages + stage);
  }
  __device__ uint32_t NormReady() const { return EmptyWeight(kEmptyBarriers); }
  // The first step's input has become f16.
  __device__ uint32_t Converted(int stage) const { return EmptyWeight(kEmptyBarriers + 1 + stage); }
  // 1 / rms of a token for the norm number `norms` of the chain.
  __device__ uint32_t Norm(int norms, int token) const {
    return base + kNormAt + 4 * (norms % 2 * C::kTokens + token);
  }
  // Sums of squares of a group of 16 rows, one for each token, in a tile that is number `summed` with such sums of a split.
  __device__ uint32_t Squares(int split, int summed, int group16) const {
    const int place = (split * 2 + summed % 2) * (C::kRows / 16) + group16;
    return base + kSquaresAt + 4 * C::kTokens * place;
  }
  __device__ SplitJoin<C> Join() const { return {base + kJoinAt}; }
};

// This CTA's units of a step. Those that have any are the first ones of the grid.
struct ChainShare {
  int32_t units;
  int32_t ctas;
  int32_t begin;
  int32_t end;
  __device__ __forceinline__ explicit ChainShare(int32_t all) : units(all) {
    const auto cta = static_cast<int32_t>(blockIdx.x);
    ctas = min(static_cast<int32_t>(gridDim.x), units);
    begin = cta < ctas ? FirstUnit(cta, ctas, units) : units;
    end = cta < ctas ? FirstUnit(cta + 1, ctas, units) : units;
  }
  __device__ __forceinline__ int32_t OwnerOf(int32_t unit) const {
    return OwnerOfUnit(unit, ctas, units);
  }
};

// ---- words in global memory ----

__device__ __forceinline__ void AwaitCounter(const uint32_t* counter, uint32_t target) {
  uint32_t seen;
#ifdef AISP_CHAIN_SPIN_LIMIT
  int64_t spins = 0;
#endif
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
#ifdef AISP_CHAIN_SPIN_LIMIT
    if (++spins > AISP_CHAIN_SPIN_LIMIT) __trap();
#endif
  } while (seen < target);
}
__device__ __forceinline__ void ReleaseAdd(uint32_t* counter, uint32_t n) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}
// Between ordinary accesses to global memory and the copy engine's.
__device__ __forceinline__ void GlobalFenceProxyAsync() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
__device__ __forceinline__ void StoreShared(uint32_t address, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory");
}
__device__ __forceinline__ float LoadShared(uint32_t address) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
  return v;
}

// ---- sums of a tile that several CTAs share ----

template <class C>
__device__ __forceinline__ uint4* PartOf(float* parts, int32_t cta) {
  return reinterpret_cast<uint4*>(parts + static_cast<int64_t>(cta) * C::kPartialFloats) +
         threadIdx.x % C::kRowThreads;
}

template <class C>
__device__ __forceinline__ void WritePart(float* parts, const float (&sums)[C::kTiles][C::kSums]) {
  uint4* const to = PartOf<C>(parts, blockIdx.x);
#pragma unroll
  for (int i = 0; i < C::kTiles; ++i) {
#pragma unroll
    for (int q = 0; q < C::kSums / 4; ++q) {
      StoreRelaxed(
          to + (i * (C::kSums / 4) + q) * C::kRowThreads,
          make_uint4(__float_as_uint(sums[i][4 * q]), __float_as_uint(sums[i][4 * q + 1]),
                     __float_as_uint(sums[i][4 * q + 2]), __float_as_uint(sums[i][4 * q + 3])));
    }
  }
}

// Adds the parts of the CTAs behind this one, up to `last`.
template <class C>
__device__ __forceinline__ void AddParts(float* parts, int32_t last,
                                         float (&sums)[C::kTiles][C::kSums]) {
  constexpr int kQuads = C::kTiles * C::kSums / 4;
  // Several at a time, to have more loads in flight.
  constexpr int kBatch = kQuads >= 8 ? 1 : kQuads == 1 ? 4 : 8 / kQuads;
  const auto missing = [](const uint4& v) {
    return v.x == kChainNoSum || v.y == kChainNoSum || v.z == kChainNoSum || v.w == kChainNoSum;
  };
  for (int32_t cta = static_cast<int32_t>(blockIdx.x) + 1; cta <= last; cta += kBatch) {
    uint4 part[kBatch][kQuads];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const uint4* const from = PartOf<C>(parts, min(cta + b, last));
#pragma unroll
      for (int q = 0; q < kQuads; ++q) part[b][q] = LoadRelaxed(from + q * C::kRowThreads);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (cta + b > last) break;
      uint4* const from = PartOf<C>(parts, cta + b);
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
#ifdef AISP_CHAIN_SPIN_LIMIT
        int64_t spins = 0;
#endif
        while (missing(part[b][q])) {
          part[b][q] = LoadRelaxed(from + q * C::kRowThreads);
#ifdef AISP_CHAIN_SPIN_LIMIT
          if (++spins > AISP_CHAIN_SPIN_LIMIT) __trap();
#endif
        }
        StoreRelaxed(from + q * C::kRowThreads,
                     make_uint4(kChainNoSum, kChainNoSum, kChainNoSum, kChainNoSum));
        float(&to)[C::kSums] = sums[q / (C::kSums / 4)];
        const int at = q % (C::kSums / 4) * 4;
        to[at] += __uint_as_float(part[b][q].x);
        to[at + 1] += __uint_as_float(part[b][q].y);
        to[at + 2] += __uint_as_float(part[b][q].z);
        to[at + 3] += __uint_as_float(part[b][q].w);
      }
    }
  }
}

// ---- a finished tile ----

__device__ __forceinline__ float ChainSiluMul(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

// A thread's two rows of a tile of 64: what it needs beside the sums, fetched ahead.
template <class C>
struct TileRows {
  int32_t row[2];
  bool has[2];
  bool inner;  // another step reads the output
  float scale[2];
  float bias[2] = {0.0f, 0.0f};
  float gain[2] = {0.0f, 0.0f};
  float old[C::kSums];

  __device__ __forceinline__ void Load(const ChainStepParams& step, int32_t top, bool needed,
                                       bool last) {
    const StreamParams& p = step.p;
    inner = !last;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = top + 8 * r;
      has[r] = needed && row[r] < p.n;
      scale[r] = C::kF16 ? kF16Divisor : 1.0f;
      if constexpr (C::kFormat != StreamFormat::kBf16 && !C::kBlockScales) {
        if (has[r]) scale[r] *= __ldg(p.scales + row[r]);
      }
      if (p.bias != nullptr && has[r]) bias[r] = __ldg(p.bias + row[r]);
      if (step.gain != nullptr && has[r]) gain[r] = __ldg(step.gain + row[r]);
    }
  }

  // What is added to. Not through L1, where an earlier step may have left older values.
  __device__ __forceinline__ void LoadOld(const StreamParams& p, int lane) {
    if (p.store != Store::kAccumulateF32) return;
    const float* const y = static_cast<const float*>(p.y);
#pragma unroll
    for (int i = 0; i < C::kSums; ++i) {
      const int32_t token = i / 4 * 8 + 2 * (lane % 4) + i % 2;
      const int r = i / 2 % 2;
      old[i] = has[r] && token < p.rows ? __ldcg(y + token * p.y_stride + row[r]) : 0.0f;
    }
  }

  // Scales, adds the bias and stores. `norms`: which norm of the chain is in front of this step; `squares`: shared address for the
  // sums of squares.
  __device__ __forceinline__ void Store(const ChainShared<C>& shared, const ChainStepParams& step,
                                        int norms, int32_t group_row, int lane, uint32_t squares,
                                        const float (&sums)[C::kSums]) {
    const StreamParams& p = step.p;
    // All fetched before anything is stored, so that they are fetched at once.
    float norm[kOwnTokens];
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) norm[i] = 1.0f;
    if (step.input_squares != nullptr) {
#pragma unroll
      for (int i = 0; i < kOwnTokens; ++i) norm[i] = LoadShared(shared.Norm(norms, Token(i, lane)));
    }
    const auto value = [&](int i, int r) {
      return sums[At(i, r)] * (scale[r] * norm[i]) + bias[r];
    };
    if (p.store == Store::kSiluMulBf16) {
      StoreRows(p, lane, [&](__nv_bfloat16* y, int i) {
        const float v = ChainSiluMul(value(i, 0), value(i, 1));
        if (has[1]) StoreElement(y, group_row / 2 + lane / 4, v);
      });
    } else if (p.store == Store::kBf16) {
      StoreRows(p, lane, [&](__nv_bfloat16* y, int i) {
        if (has[0]) StoreElement(y, row[0], value(i, 0));
        if (has[1]) StoreElement(y, row[1], value(i, 1));
      });
    } else {
      StoreF32(step, lane, squares, value);
    }
  }

 private:
  // A thread has sums of these tokens, for its two rows.
  static constexpr int kOwnTokens = C::kTokens / 4;
  static __device__ __forceinline__ int32_t Token(int i, int lane) {
    return i / 2 * 8 + 2 * (lane % 4) + i % 2;
  }
  static constexpr int At(int i, int r) { return i / 2 * 4 + i % 2 + 2 * r; }

  __device__ __forceinline__ void StoreElement(__nv_bfloat16* y, int32_t i, float v) const {
    if (C::kF16 && inner) {
      StoreInner<C>(y, i, v);
    } else {
      y[i] = __float2bfloat16(v);
    }
  }

  template <class StoreToken>
  __device__ __forceinline__ void StoreRows(const StreamParams& p, int lane,
                                            const StoreToken& store) {
    __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y);
    const int64_t stride = p.y_stride;
    const int32_t tokens = p.rows;
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const int32_t token = Token(i, lane);
      if (token < tokens) store(y + token * stride, i);
    }
  }

  template <class Value>
  __device__ __forceinline__ void StoreF32(const ChainStepParams& step, int lane,
                                           uint32_t squares_at, const Value& value) {
    const bool add = step.p.store == Store::kAccumulateF32;
    const int64_t stride = step.p.y_stride;
    const int32_t tokens = step.p.rows;
    const int32_t n = step.p.n;
    float* const y = static_cast<float*>(step.p.y);
    __nv_bfloat16* const normed = step.gain != nullptr ? step.normed : nullptr;
    float squares[kOwnTokens];
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) {
      const int32_t token = Token(i, lane);
      squares[i] = 0.0f;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if (token >= tokens || !has[r]) continue;
        float v = value(i, r);
        if (add) v += old[At(i, r)];
        y[token * stride + row[r]] = v;
        if (normed == nullptr) continue;
        StoreInner<C>(normed + static_cast<int64_t>(token) * n, row[r], v * gain[r]);
        squares[i] += v * v;
      }
    }
    if (normed == nullptr) return;
#pragma unroll
    for (int offset = 16; offset > 2; offset /= 2) {
#pragma unroll
      for (int i = 0; i < kOwnTokens; ++i) {
        squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], offset);
      }
    }
    if (lane >= 4) return;
#pragma unroll
    for (int i = 0; i < kOwnTokens; ++i) StoreShared(squares_at + 4 * Token(i, lane), squares[i]);
  }
};

// Adds up what the warps of a split have left of a tile. All of them call; shared memory has two places for the sums, so that one
// barrier for each tile is enough.
template <class C>
__device__ __forceinline__ void StoreSquares(const ChainShared<C>& shared,
                                             const ChainStepParams& step, int32_t tile, int split,
                                             int summed) {
  NamedSync(2 + split, C::kRowThreads);
  const auto token = static_cast<int>(threadIdx.x) % C::kRowThreads;
  if (token >= C::kTokens) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < C::kRows / 16; ++i) {
    sum += LoadShared(shared.Squares(split, summed, i) + 4 * token);
  }
  step.squares[tile * C::kTokens + token] = sum;
}

}  // namespace aisp::cuda
