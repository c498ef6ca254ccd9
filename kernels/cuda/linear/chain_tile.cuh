// Parts of the kernel for several layers (chain.cuh): the layout of shared memory, the words by which CTAs tell each other that
// something is there, and what happens to the sums of a finished tile.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/split_join.cuh"
#include "kernels/cuda/linear/stream_config.cuh"

namespace aisp::cuda {

// Shared memory of a CTA by address.
template <class C>
struct ChainShared {
  static constexpr int kThreads = C::kConsumers + 96;
  static constexpr int kBarriers = 3 * C::kStages + 1;
  // Stages of weights that a CTA has asked for and not got, at most. As many as keep memory busy and no more: whatever else the
  // chain reads (parts, counters, inputs) stands in the same queue.
  static constexpr int kInFlightBytes = 48 << 10;
  static constexpr int kInFlight = C::kWeightBytes * C::kStages < kInFlightBytes
                                       ? C::kStages
                                       : (kInFlightBytes + C::kWeightBytes - 1) / C::kWeightBytes;
  static constexpr int kNormAt = C::kStages * C::kStageBytes + 8 * (kBarriers + kBarriers % 2);
  static constexpr int kJoinAt = kNormAt + 2 * 4 * C::kTokens;
  static constexpr int kBytes = 1024 + kJoinAt + SplitJoin<C>::kBytes;

  uint32_t base;  // 1024-aligned
  __device__ uint32_t Input(int stage) const { return base + stage * C::kStageBytes; }
  __device__ uint32_t Weight(int stage) const { return Input(stage) + C::kInputBytes; }
  __device__ uint32_t Barrier(int i) const { return base + C::kStages * C::kStageBytes + 8 * i; }
  __device__ uint32_t FullWeight(int stage) const { return Barrier(stage); }
  __device__ uint32_t FullInput(int stage) const { return Barrier(C::kStages + stage); }
  __device__ uint32_t Empty(int stage) const { return Barrier(2 * C::kStages + stage); }
  __device__ uint32_t NormReady() const { return Barrier(3 * C::kStages); }
  // 1 / rms of a token for the norm number `norms` of the chain.
  __device__ uint32_t Norm(int norms, int token) const {
    return base + kNormAt + 4 * (norms % 2 * C::kTokens + token);
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
__device__ __forceinline__ void ReleaseAdd(uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}
// Between ordinary accesses to global memory and the copy engine's.
__device__ __forceinline__ void AsyncProxyFence() {
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
__device__ __forceinline__ void StoreRelaxed(void* to, uint4 v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ uint4 LoadRelaxed(const void* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
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
  float scale[2] = {1.0f, 1.0f};
  float bias[2] = {0.0f, 0.0f};
  float gain[2] = {0.0f, 0.0f};
  float old[C::kSums];

  __device__ __forceinline__ void Load(const ChainStepParams& step, int32_t top, bool needed) {
    const StreamParams& p = step.p;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row[r] = top + 8 * r;
      has[r] = needed && row[r] < p.n;
      if constexpr (C::kFormat != StreamFormat::kBf16 && !C::kBlockScales) {
        if (has[r]) scale[r] = __ldg(p.scales + row[r]);
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

  // Scales, adds the bias and stores. `norms`: which norm of the chain is in front of this step.
  __device__ __forceinline__ void Store(const ChainShared<C>& shared, const ChainStepParams& step,
                                        int norms, int32_t group_row, int lane,
                                        const float (&sums)[C::kSums]) {
    const StreamParams& p = step.p;
#pragma unroll
    for (int j = 0; j < C::kTokens / 8; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32_t token = 8 * j + 2 * (lane % 4) + h;
        const bool counts = token < p.rows;
        float norm = 1.0f;
        if (step.input_squares != nullptr && counts) norm = LoadShared(shared.Norm(norms, token));
        float v[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) v[r] = sums[4 * j + h + 2 * r] * (scale[r] * norm) + bias[r];
        const int64_t line = token * p.y_stride;
        if (p.store == Store::kSiluMulBf16) {
          __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + line;
          if (counts && has[1]) {
            y[group_row / 2 + lane / 4] = __float2bfloat16(ChainSiluMul(v[0], v[1]));
          }
        } else if (p.store == Store::kBf16) {
          __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + line;
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (counts && has[r]) y[row[r]] = __float2bfloat16(v[r]);
          }
        } else {
          StoreF32(step, token, counts, h, j, group_row, lane, v);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ void StoreF32(const ChainStepParams& step, int32_t token, bool counts,
                                           int h, int j, int32_t group_row, int lane,
                                           float (&v)[2]) {
    const StreamParams& p = step.p;
    float* const y = static_cast<float*>(p.y) + token * p.y_stride;
    float squares = 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (p.store == Store::kAccumulateF32) v[r] += old[4 * j + h + 2 * r];
      if (counts && has[r]) {
        y[row[r]] = v[r];
        squares += v[r] * v[r];
        if (step.gain != nullptr) {
          step.normed[static_cast<int64_t>(token) * p.n + row[r]] =
              __float2bfloat16(v[r] * gain[r]);
        }
      }
    }
    if (step.gain == nullptr) return;
#pragma unroll
    for (int offset = 16; offset > 2; offset /= 2) {
      squares += __shfl_xor_sync(0xffffffffu, squares, offset);
    }
    if (lane < 4 && group_row < p.n) {
      step.squares[static_cast<int64_t>(group_row / 16) * C::kTokens + token] = squares;
    }
  }
};

}  // namespace aisp::cuda
