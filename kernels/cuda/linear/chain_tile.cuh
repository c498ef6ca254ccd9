// Parts of the kernel for several layers (chain.cuh): the layout of shared memory, the flags
// between CTAs, and the processing of a finished tile's sums.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/linear/chain_kernels.h"
#include "kernels/cuda/linear/f16_input.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/stream_config.cuh"
#include "kernels/cuda/poll.cuh"

namespace aisp::cuda {

// Shared memory addresses of a CTA.
template <class C>
struct ChainShared {
  static constexpr int kConverters = C::kF16 ? 64 : 0;  // threads: the norm warp and one more
  // Consumers of 64 tokens take registers from the other warps, which then form one warpgroup: with
  // the same number for all threads, accumulators spill to L2.
  static constexpr bool kMovesRegisters = C::kTokens == 64 && C::kConsumers == 256;
  static constexpr int kConsumerRegisters = 216;
  static constexpr int kOtherRegisters = 72;
  static constexpr int kThreads = C::kConsumers + (kMovesRegisters ? 128 : 96 + kConverters / 2);
  static constexpr int kInputStages = C::kInputStages;
  // With equal numbers of stages both rings are one: a stage holds both operands and is released
  // once.
  static constexpr bool kOneRing = ChainCursor<C>::kOneRing;
  static constexpr int kEmptyBarriers = C::kStages + (kOneRing ? 0 : kInputStages);
  static constexpr int kBarriers =
      C::kStages + kInputStages + kEmptyBarriers + (C::kF16 ? kInputStages : 0) + 1;
  // Limit of weight stages requested and not yet loaded: enough to keep memory busy. Everything
  // else that the chain reads (parts, counters, inputs) waits in the same queue.
  static constexpr int kInFlightBytes =
      (C::kFormat == StreamFormat::kBf16 || C::kFormat == StreamFormat::kFp8 ? 64 : 48) << 10;
  static constexpr int kInFlight = C::kWeightBytes * C::kStages < kInFlightBytes
                                       ? C::kStages
                                       : (kInFlightBytes + C::kWeightBytes - 1) / C::kWeightBytes;
  // The same while the ring fills between steps, when the sums and inputs of the step before wait
  // in that queue. Measured to help in these formats.
  static constexpr bool kFewerBetween = C::kFormat == StreamFormat::kBf16 ||
                                        C::kFormat == StreamFormat::kFp8 ||
                                        (C::kNvfp4 && C::kTokens == 64);
  static constexpr int kInFlightBetween =
      kFewerBetween ? std::min(kInFlight, (32 << 10) / C::kWeightBytes) : kInFlight;
  // Units prefetched into L2 between steps, beyond the ring.
  static constexpr int kUnitsAhead = C::kNvfp4 ? 0 : 2;
  static constexpr int kInputStride = kOneRing ? C::kStageBytes : C::kInputBytes;
  static constexpr int kWeightStride = kOneRing ? C::kStageBytes : C::kWeightBytes;
  static constexpr int kWeightsAt = kOneRing ? C::kInputBytes : kInputStages * C::kInputBytes;
  static constexpr int kBarriersAt =
      kOneRing ? C::kStages * C::kStageBytes : kWeightsAt + C::kStages * C::kWeightBytes;
  static_assert(kOneRing || (C::kInputBytes % 1024 == 0 && C::kWeightBytes % 1024 == 0));
  static constexpr int kNormAt = kBarriersAt + 8 * (kBarriers + kBarriers % 2);
  static constexpr int kSquaresAt = kNormAt + 2 * 4 * C::kTokens;
  static constexpr int kBytes = 1024 + kSquaresAt + 2 * 4 * C::kTokens * (C::kRows / 16);
  static_assert(C::kTiles == 1 && C::kSplits == 1);

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
  // Waits for both operands of a unit at once. `first`: of the first step, whose input must be
  // converted to f16.
  __device__ __forceinline__ void AwaitUnit(const ChainCursor<C>& cursor, bool first) const {
    const int input = cursor.input().stage;
    BarrierWaitBoth(FullWeight(cursor.weight.stage), cursor.weight.parity,
                    C::kF16 && first ? Converted(input) : FullInput(input), cursor.input().parity);
  }
  // Releases a unit's stages, by all lanes of each consumer warp.
  __device__ __forceinline__ void Release(const ChainCursor<C>& cursor, int lane) const {
    if (!C::kNvfp4 && lane != 0) return;
    BarrierArrive(EmptyWeight(cursor.weight.stage));
    if constexpr (!kOneRing) BarrierArrive(EmptyInput(cursor.input().stage));
  }
  __device__ uint32_t NormReady() const { return EmptyWeight(kEmptyBarriers); }
  // Barrier: the first step's input has been converted to f16.
  __device__ uint32_t Converted(int stage) const { return EmptyWeight(kEmptyBarriers + 1 + stage); }
  // 1 / rms of a token for norm number `norms` of the chain.
  __device__ uint32_t Norm(int norms, int token) const {
    return base + kNormAt + 4 * (norms % 2 * C::kTokens + token);
  }
  // Sums of squares of a group of 16 rows, one per token; `summed` counts the CTA's such sums.
  __device__ uint32_t Squares(int summed, int group16) const {
    return base + kSquaresAt + 4 * C::kTokens * (summed % 2 * (C::kRows / 16) + group16);
  }
};

// This CTA's units of a step; the CTAs with any are the first of the grid. Units times CTAs fit in
// 32 bits (Chains::Fits), since 64-bit divisions would be too slow here.
struct ChainShare {
  uint32_t units;
  uint32_t ctas;
  int32_t begin;
  int32_t end;
  __device__ __forceinline__ ChainShare(int32_t all, uint32_t most)
      : units(static_cast<uint32_t>(all)), ctas(min(min(gridDim.x, most), units)) {
    begin = blockIdx.x < ctas ? First(blockIdx.x) : all;
    end = blockIdx.x < ctas ? First(blockIdx.x + 1) : all;
  }
  // A CTA's first unit / the CTA that has a unit.
  __device__ __forceinline__ int32_t First(uint32_t cta) const {
    return static_cast<int32_t>(cta * units / ctas);
  }
  __device__ __forceinline__ int32_t OwnerOf(int32_t unit) const {
    return static_cast<int32_t>(((static_cast<uint32_t>(unit) + 1) * ctas - 1) / units);
  }
};

template <class Step>
__device__ __forceinline__ ChainShare ShareOf(const Step& step) {
  return ChainShare(step.p.units, step.most_ctas);
}

// ---- flags and published values in global memory ----

__device__ __forceinline__ void AwaitCounter(const uint32_t* counter, uint32_t target,
                                             const PollTag& poll) {
  uint32_t seen;
  PollLimit<PollSite::kChainInput> limit;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
    limit.Count(poll);
  } while (seen < target);
}
__device__ __forceinline__ void ReleaseAdd(uint32_t* counter, uint32_t n) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(n) : "memory");
}
// Orders ordinary accesses to global memory and the copy engine's.
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

// 8-aligned.
__device__ __forceinline__ float2 LoadSharedPair(uint32_t address) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
  return v;
}

// ---- sums of a tile that several CTAs share ---- (split-K: each CTA has multiplied a part of K)

// The CTAs that share a tile: `first` to `last`. A thread's sums are in quads (rows g and g + 8,
// two tokens; quad q has tokens 8 q to 8 q + 7). The CTAs whose last tile it is come first and
// finish it, each every finishers-th quad. A CTA publishes its sums before it waits, so there is no
// deadlock.
struct TileCtas {
  int32_t first;
  int32_t last;
  int32_t finishers;
  // `whole`: one CTA has the whole tile.
  __device__ __forceinline__ TileCtas(const ChainShare& share, int32_t tile, int32_t k_units,
                                      bool whole)
      : first(static_cast<int32_t>(blockIdx.x)), last(first), finishers(1) {
    if (whole) return;
    first = share.OwnerOf(tile * k_units);
    last = share.OwnerOf((tile + 1) * k_units - 1);
    const bool ends = share.First(static_cast<uint32_t>(last) + 1) == (tile + 1) * k_units;
    finishers = last - first + (ends ? 1 : 0);
  }
  // Where a CTA publishes its sums of the tile; it may do so for two tiles per step.
  __device__ __forceinline__ int Slot(int32_t cta) const { return cta - first < finishers ? 1 : 0; }
};

template <class C>
__device__ __forceinline__ uint4* PartOf(float* parts, int32_t cta, int slot) {
  return reinterpret_cast<uint4*>(parts +
                                  (static_cast<int64_t>(cta) * 2 + slot) * C::kPartialFloats) +
         threadIdx.x;
}

// Publishes this CTA's sums for the finishers of the tile, except the quads that it finishes itself
// (its number among the finishers is `rank`; -1: it is none).
template <class C>
__device__ __forceinline__ void WritePart(float* parts, const TileCtas& ctas, int32_t rank,
                                          const float (&sums)[C::kSums]) {
  const auto cta = static_cast<int32_t>(blockIdx.x);
  uint4* const to = PartOf<C>(parts, cta, ctas.Slot(cta));
#pragma unroll
  for (int q = 0; q < C::kSums / 4; ++q) {
    if (rank >= 0 && q % ctas.finishers == rank) continue;
    StoreRelaxed(to + q * C::kConsumers,
                 make_uint4(__float_as_uint(sums[4 * q]), __float_as_uint(sums[4 * q + 1]),
                            __float_as_uint(sums[4 * q + 2]), __float_as_uint(sums[4 * q + 3])));
  }
}

__device__ __forceinline__ bool PartIsMissing(const uint4& v) {
  return v.x == kChainNoSum || v.y == kChainNoSum || v.z == kChainNoSum || v.w == kChainNoSum;
}
// Polls a partial sum, whose first read gave `v`, adds it and resets its slots to the marker.
__device__ __forceinline__ void TakePart(uint4* from, uint4 v, const PollTag& poll, float* sums) {
  PollLimit<PollSite::kChainParts> limit;
  while (PartIsMissing(v)) {
    v = LoadRelaxed(from);
    limit.Count(poll);
  }
  StoreRelaxed(from, make_uint4(kChainNoSum, kChainNoSum, kChainNoSum, kChainNoSum));
  sums[0] += __uint_as_float(v.x);
  sums[1] += __uint_as_float(v.y);
  sums[2] += __uint_as_float(v.z);
  sums[3] += __uint_as_float(v.w);
}

// The other CTAs' sums of a quad, requested early and then added in CTA order. Requests kAtOnce
// CTAs at a time; a tile rarely has more than six, except that of adapters' sums.
template <class C, int kAtOnce>
struct QuadParts {
  uint4 seen[kAtOnce];

  __device__ __forceinline__ void Ask(float* parts, const TileCtas& ctas, int32_t quad) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t cta = ctas.first + i;
      if (cta > ctas.last || cta == static_cast<int32_t>(blockIdx.x)) continue;
      seen[i] = LoadRelaxed(PartOf<C>(parts, cta, ctas.Slot(cta)) + quad * C::kConsumers);
    }
  }
  __device__ __forceinline__ void AddTo(float* parts, const TileCtas& ctas, int32_t quad,
                                        const PollTag& poll, float (&sums)[4]) const {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t cta = ctas.first + i;
      if (cta > ctas.last || cta == static_cast<int32_t>(blockIdx.x)) continue;
      TakePart(PartOf<C>(parts, cta, ctas.Slot(cta)) + quad * C::kConsumers, seen[i], poll, sums);
    }
    if constexpr (kAtOnce > 6) {
      for (int32_t begin = ctas.first + kAtOnce; begin <= ctas.last; begin += kAtOnce) {
        TakeMore(parts, ctas, begin, quad, poll, sums);
      }
    } else {
      for (int32_t cta = ctas.first + kAtOnce; cta <= ctas.last; ++cta) {
        if (cta == static_cast<int32_t>(blockIdx.x)) continue;
        uint4* const from = PartOf<C>(parts, cta, ctas.Slot(cta)) + quad * C::kConsumers;
        TakePart(from, LoadRelaxed(from), poll, sums);
      }
    }
  }

 private:
  // Requests the parts of the CTAs from `begin` on.
  static __device__ __forceinline__ void TakeMore(float* parts, const TileCtas& ctas, int32_t begin,
                                                  int32_t quad, const PollTag& poll,
                                                  float (&sums)[4]) {
    uint4 more[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t cta = min(begin + i, ctas.last);
      more[i] = LoadRelaxed(PartOf<C>(parts, cta, ctas.Slot(cta)) + quad * C::kConsumers);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int32_t cta = begin + i;
      if (cta > ctas.last || cta == static_cast<int32_t>(blockIdx.x)) continue;
      TakePart(PartOf<C>(parts, cta, ctas.Slot(cta)) + quad * C::kConsumers, more[i], poll, sums);
    }
  }
};

// For the case that this CTA, the first, finishes all quads of the tile alone.
template <class C>
__device__ __forceinline__ void AddAllParts(float* parts, const TileCtas& ctas, const PollTag& poll,
                                            float (&sums)[C::kSums]) {
  constexpr int kQuads = C::kSums / 4;
  for (int32_t cta = ctas.first + 1; cta <= ctas.last; ++cta) {
    uint4* const from = PartOf<C>(parts, cta, ctas.Slot(cta));
    uint4 seen[kQuads];
#pragma unroll
    for (int q = 0; q < kQuads; ++q) seen[q] = LoadRelaxed(from + q * C::kConsumers);
#pragma unroll
    for (int q = 0; q < kQuads; ++q)
      TakePart(from + q * C::kConsumers, seen[q], poll, sums + 4 * q);
  }
}

// ---- a finished tile ----

__device__ __forceinline__ float ChainSiluMul(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// Values besides the sums for a thread's two rows of a tile of 64, prefetched.
template <class C>
struct TileRows {
  int32_t row[2];
  bool has[2];
  bool inner;  // another step reads the output
  float scale[2];
  float bias[2] = {0.0f, 0.0f};
  float gain[2] = {0.0f, 0.0f};

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

  // Loads the old values to add to. Bypasses L1, which may hold an earlier step's values.
  __device__ __forceinline__ void LoadOld(const StreamParams& p, int32_t quad, int lane,
                                          float (&old)[4]) const {
    if (p.store != Store::kAccumulateF32) return;
    const float* const y = static_cast<const float*>(p.y);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t token = Token(quad, lane) + i % 2;
      old[i] = has[i / 2] && token < p.rows ? __ldcg(y + token * p.y_stride + row[i / 2]) : 0.0f;
    }
  }

  // Scales, adds the bias and stores a quad as 16-bit values. `norms`: number of the norm in front
  // of this step. Only stores are conditional: values computed in branches would be serialised.
  template <class Step>
  __device__ __forceinline__ void Store16(const ChainShared<C>& shared, const Step& step, int norms,
                                          int32_t group_row, int32_t quad, int lane,
                                          const float* sums) const {
    const StreamParams& p = step.p;
    const int32_t token = Token(quad, lane);
    float value[4];
    Scale(shared, step, norms, token, sums, value);
    if constexpr (std::is_same_v<Step, AdaptedStepParams>) KeepOwnAdapter(step, token, value);
    __nv_bfloat16* const y = static_cast<__nv_bfloat16*>(p.y) + token * p.y_stride;
    const bool there[2] = {token < p.rows, token + 1 < p.rows};
    if (p.store == Store::kSiluMulBf16) {
      const float v[2] = {ChainSiluMul(value[0], value[2]), ChainSiluMul(value[1], value[3])};
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        if (has[1] && there[t]) StoreElement(y + t * p.y_stride, group_row / 2 + lane / 4, v[t]);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (has[i / 2] && there[i % 2]) {
        StoreElement(y + i % 2 * p.y_stride, row[i / 2], value[i]);
      }
    }
  }

  // The same as f32, added to `old` if the step accumulates, plus the outputs for a following norm.
  // `squares`: shared address for the sums of squares.
  __device__ __forceinline__ void Store32(const ChainShared<C>& shared, const ChainStepParams& step,
                                          int norms, int32_t quad, int lane, uint32_t squares_at,
                                          const float (&old)[4], const float (&sums)[4]) const {
    const StreamParams& p = step.p;
    const int32_t token = Token(quad, lane);
    float v[4];
    Scale(shared, step, norms, token, sums, v);
    float* const y = static_cast<float*>(p.y) + token * p.y_stride;
    const bool there[2] = {token < p.rows, token + 1 < p.rows};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (p.store == Store::kAccumulateF32) v[i] += old[i];
      if (has[i / 2] && there[i % 2]) y[i % 2 * p.y_stride + row[i / 2]] = v[i];
    }
    if (step.gain == nullptr) return;
    const int64_t n = p.n;
    float squares[2] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!has[i / 2] || !there[i % 2]) continue;
      StoreInner<C>(step.normed + (token + i % 2) * n, row[i / 2], v[i] * gain[i / 2]);
      squares[i % 2] += v[i] * v[i];
    }
#pragma unroll
    for (int offset = 16; offset > 2; offset /= 2) {
      squares[0] += __shfl_xor_sync(0xffffffffu, squares[0], offset);
      squares[1] += __shfl_xor_sync(0xffffffffu, squares[1], offset);
    }
    if (lane >= 4) return;
    StoreShared(squares_at + 4 * token, squares[0]);
    StoreShared(squares_at + 4 * token + 4, squares[1]);
  }

 private:
  // Zeroes the sums of all adapters except the token's own.
  __device__ __forceinline__ void KeepOwnAdapter(const AdaptedStepParams& step, int32_t token,
                                                 float (&value)[4]) const {
    if (step.adapter_columns == 0) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t t = token + i % 2;
      const int32_t adapter = t < step.p.rows ? __ldg(step.adapter_of_row + t) : -1;
      if (row[i / 2] / step.adapter_columns != adapter) value[i] = 0.0f;
    }
  }

  // The first of a lane's two tokens in a quad.
  static __device__ __forceinline__ int32_t Token(int32_t quad, int lane) {
    return quad * 8 + 2 * (lane % 4);
  }

  __device__ __forceinline__ void Scale(const ChainShared<C>& shared, const ChainStepParams& step,
                                        int norms, int32_t token, const float* sums,
                                        float (&value)[4]) const {
    const float2 norm = step.input_squares == nullptr ? make_float2(1.0f, 1.0f)
                                                      : LoadSharedPair(shared.Norm(norms, token));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      value[i] = sums[i] * (scale[i / 2] * (i % 2 == 0 ? norm.x : norm.y)) + bias[i / 2];
    }
  }

  __device__ __forceinline__ void StoreElement(__nv_bfloat16* y, int32_t i, float v) const {
    if (C::kF16 && inner) {
      StoreInner<C>(y, i, v);
    } else {
      y[i] = __float2bfloat16(v);
    }
  }
};

// Adds the warps' sums of squares for eight tokens from `first` on. Called by all; shared memory
// holds two sets, so one barrier is enough.
template <class C>
__device__ __forceinline__ void StoreSquares(const ChainShared<C>& shared,
                                             const ChainStepParams& step, int32_t tile,
                                             int32_t first, int summed) {
  NamedSync(2, C::kConsumers);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread >= 8) return;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < C::kRows / 16; ++i) {
    sum += LoadShared(shared.Squares(summed, i) + 4 * (first + thread));
  }
  step.squares[tile * C::kTokens + first + thread] = sum;
}

}  // namespace aisp::cuda
