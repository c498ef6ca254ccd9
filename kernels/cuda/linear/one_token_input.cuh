// How a warp of the kernels for one token gets its part of a step's input into shared memory, in the order of the fragments that
// it multiplies with.
//
// A warp has its own K: of every stage the same block. It fetches that part itself, from x or from the words in which other CTAs
// leave their outputs, and waits for no one else: a word that does not say "nothing" is there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/linear/f16_input.h"
#include "kernels/cuda/linear/one_token_config.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/quantize.h"

namespace aisp::cuda {

__device__ __forceinline__ void StoreShared4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void StoreShared2(uint32_t address, uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(v) : "memory");
}

// Where the eight bytes of a lane lie in which there is an even element and the next. Lane t of four reads those at 8 t of a step of
// 16; in bf16 these are its pairs t and t + 4. Two steps are interleaved, so that a lane reads both at once, but for NVFP4.
template <class C>
__device__ __forceinline__ uint32_t InputAt(int element) {
  const int t = element % 8 / 2;
  if constexpr (C::kNvfp4) return element / 16 * 32 + t * 8;
  return element / 32 * 64 + t * 16 + element / 16 % 2 * 8;
}

// What the token is multiplied by before it is rounded: FP8 and NVFP4 weights are widened to less or more than they are.
template <class C>
constexpr float kInputFactor = C::kNvfp4 ? 1152921504606846976.0f  // 2^60: see Nvfp4Piece
                               : C::kF16 ? 1.0f / kF16Divisor
                                         : 1.0f;

// Two elements, multiplied by the factor; `to` as InputAt says. FP8 weights widen in an order of their own: see F16Place.
template <class C>
__device__ __forceinline__ void PutPair(uint32_t to, int half, float a, float b) {
  if constexpr (C::kF16) {
    const __half2 pair = __floats2half2_rn(a, b);
    const auto bits = reinterpret_cast<const uint32_t&>(pair);
    // Element r of 16 is with lane r % 8 / 2, in the half word r % 2 * 2 + (r < 8).
    StoreShared2(to + (half == 0 ? 2 : 0), static_cast<uint16_t>(bits));
    StoreShared2(to + (half == 0 ? 6 : 4), static_cast<uint16_t>(bits >> 16));
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    StoreShared4(to + half * 4, reinterpret_cast<const uint32_t&>(pair));
  }
}

// Elements `element` to `element` + kCount - 1 of a block, kCount 4 or 8, which divides `element`.
template <class C, int kCount>
__device__ __forceinline__ void PutPairs(uint32_t block, int element, const float (&v)[kCount]) {
  constexpr int kApart = C::kNvfp4 ? 8 : 16;
  const uint32_t to = block + InputAt<C>(element);
#pragma unroll
  for (int j = 0; j < kCount / 2; ++j) {
    PutPair<C>(to + j * kApart, element % 16 / 8, v[2 * j], v[2 * j + 1]);
  }
}

__device__ __forceinline__ float2 WideBf16(uint32_t two) {
  return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
}

// The values of a pair as one step leaves it for the next.
template <class C>
__device__ __forceinline__ float2 WidePair(uint32_t two) {
  if constexpr (C::kF16) {
    const float2 v = __half22float2(reinterpret_cast<const __half2&>(two));
    return make_float2(v.x * kF16Divisor, v.y * kF16Divisor);
  }
  return WideBf16(two);
}

// The K of element i of a warp's part.
template <class C>
__device__ __forceinline__ int32_t KOf(int32_t i, int warp) {
  return i / C::kBlockK * C::kStageK + warp * C::kBlockK + i % C::kBlockK;
}

// Polls one vector a lane, spread over the warp's part: when these are there, so is nearly all else. What everybody polled
// everywhere would keep L2 from what it waits for.
template <class C, int kElements>
__device__ __forceinline__ void AwaitSome(const OneTokenStep& step, const void* from,
                                          int32_t element_bytes, int warp, int lane) {
  const int32_t apart = step.stages * C::kBlockK / 32;
  const int32_t k = KOf<C>(lane * apart / kElements * kElements, warp);
  const void* const at = static_cast<const char*>(from) + static_cast<int64_t>(k) * element_bytes;
#ifdef AISP_CHAIN_SPIN_LIMIT
  int64_t spins = 0;
#endif
  while (k < step.k && HasNothing(LoadRelaxed(at))) {
#ifdef AISP_CHAIN_SPIN_LIMIT
    if (++spins > AISP_CHAIN_SPIN_LIMIT) __trap();
#endif
  }
  __syncwarp();
}

// `take(i, vector, beside)` for all vectors of kElements elements of the warp's part, kBatch loads in flight. With `await`
// `vector` has no empty word; it is zero beyond K. `beside(k, there)` is called before anything is waited for.
template <class C, int kElements, int kBatch, class Beside, class Take>
__device__ __forceinline__ void ForVectors(const OneTokenStep& step, const void* from,
                                           int32_t element_bytes, bool await, int warp, int lane,
                                           const Beside& beside, const Take& take) {
  const int32_t count = step.stages * C::kBlockK;
  for (int32_t begin = 0; begin < count; begin += 32 * kElements * kBatch) {
    const int32_t first = begin + lane * kElements;
    uint4 v[kBatch];
    bool there[kBatch];
    const void* at[kBatch];
    decltype(beside(0, true)) more[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int32_t i = first + b * 32 * kElements;
      const int32_t k = KOf<C>(i, warp);
      there[b] = i < count && k < step.k;
      more[b] = beside(k, there[b]);
      at[b] = static_cast<const char*>(from) + static_cast<int64_t>(k) * element_bytes;
    }
    if (await && begin == 0) {
      AwaitSome<C, kElements>(step, from, element_bytes, warp, lane);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      v[b] = make_uint4(0, 0, 0, 0);
      if (there[b]) v[b] = LoadRelaxed(at[b]);
    }
    if (await) {
      // All that is missing is asked for at once, or each would cost a round trip of its own.
#ifdef AISP_CHAIN_SPIN_LIMIT
      int64_t spins = 0;
#endif
      bool missing = true;
      while (missing) {
        missing = false;
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (HasNothing(v[b])) {
            v[b] = LoadRelaxed(at[b]);
            missing = true;
          }
        }
#ifdef AISP_CHAIN_SPIN_LIMIT
        if (++spins > AISP_CHAIN_SPIN_LIMIT) __trap();
#endif
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int32_t i = first + b * 32 * kElements;
      if (i < count) take(i, v[b], more[b]);
    }
  }
}

// Puts eight elements given as four pairs, widened by `wide`.
template <class C, class Wide>
__device__ __forceinline__ void PutEight(uint32_t input, int32_t i, const uint4& v,
                                         const Wide& wide) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
  float wider[8];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float2 pair = wide(words[j]);
    wider[2 * j] = pair.x * kInputFactor<C>;
    wider[2 * j + 1] = pair.y * kInputFactor<C>;
  }
  PutPairs<C>(input + i / C::kBlockK * (C::kBlockK * 2), i % C::kBlockK, wider);
}

// The first step's input: bf16, complete, or words with `await`.
template <class C>
__device__ __forceinline__ void FetchToken(const OneTokenStep& step, const void* x, bool await,
                                           uint32_t input, int warp, int lane) {
  ForVectors<C, 8, C::kPairBatch>(
      step, x, 2, await, warp, lane, [](int32_t, bool) { return 0; },
      [&](int32_t i, const uint4& v, int) { PutEight<C>(input, i, v, WideBf16); });
  __syncwarp();
}

// What the step before left, 16 bits an element.
template <class C>
__device__ __forceinline__ void FetchPairs(const OneTokenStep& step, const uint32_t* set,
                                           uint32_t input, int warp, int lane) {
  ForVectors<C, 8, C::kPairBatch>(
      step, set + step.words, 2, true, warp, lane, [](int32_t, bool) { return 0; },
      [&](int32_t i, const uint4& v, int) { PutEight<C>(input, i, v, WidePair<C>); });
  __syncwarp();
}

// The residual stream, f32, times the norm's gain; the sum of its squares goes to `squares`. 1 / rms comes later, onto the sums.
template <class C>
__device__ __forceinline__ void FetchResidual(const OneTokenStep& step, const uint32_t* set,
                                              uint32_t input, uint32_t squares, int warp,
                                              int lane) {
  float sum = 0.0f;
  ForVectors<C, 4, C::kResidualBatch>(
      step, set + step.words, 4, true, warp, lane,
      [&](int32_t k, bool there) {
        float4 gain = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (there) gain = __ldg(reinterpret_cast<const float4*>(step.gain + k));
        return make_float4(gain.x * kInputFactor<C>, gain.y * kInputFactor<C>,
                           gain.z * kInputFactor<C>, gain.w * kInputFactor<C>);
      },
      [&](int32_t i, const uint4& v, const float4& gain) {
        const float h[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                            __uint_as_float(v.w)};
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += h[j] * h[j];
        const float normed[4] = {h[0] * gain.x, h[1] * gain.y, h[2] * gain.z, h[3] * gain.w};
        PutPairs<C>(input + i / C::kBlockK * (C::kBlockK * 2), i % C::kBlockK, normed);
      });
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (lane == 0) StoreShared4(squares, __float_as_uint(sum));
  __syncwarp();
}

}  // namespace aisp::cuda
