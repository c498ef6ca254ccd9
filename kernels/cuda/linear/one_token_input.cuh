// Loads a warp's part of a step's input into shared memory, in the order of its fragments.
//
// A warp has its own K: the same block of every stage. It loads that part itself, from x or from
// the slots in which other CTAs publish their outputs, and waits for no other warp: a slot without
// the empty marker is complete.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/linear/f16_input.h"
#include "kernels/cuda/linear/one_token_config.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/linear/quantize.h"
#include "kernels/cuda/linear/widen.cuh"
#include "kernels/cuda/poll.cuh"

namespace aisp::cuda {

__device__ __forceinline__ void StoreShared4(uint32_t address, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void StoreShared2(uint32_t address, uint16_t v) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(v) : "memory");
}

// Address of the eight bytes of a lane that hold an even element and the next. Lane t of four reads
// those at 8 t of a step of 16; in bf16 these are its pairs t and t + 4. Except for NVFP4, two
// steps are interleaved, so that a lane reads both at once.
template <class C>
__device__ __forceinline__ uint32_t InputAt(int element) {
  const int t = element % 8 / 2;
  if constexpr (C::kNvfp4) return element / 16 * 32 + t * 8;
  return element / 32 * 64 + t * 16 + element / 16 % 2 * 8;
}

// Factor of the token before rounding, since converted FP8 and NVFP4 weights are scaled. Slots
// published by one step for the next contain it.
template <class C>
constexpr float kInputFactor = C::kNvfp4 ? 1152921504606846976.0f  // 2^60: see Nvfp4Piece
                               : C::kF16 ? 1.0f / kF16Divisor
                                         : 1.0f;

// Stores two elements as 16-bit values; `to` as in InputAt. FP8 weights convert in an order of
// their own: see F16Offset.
template <class C>
__device__ __forceinline__ void PutWord(uint32_t to, int half, uint32_t word) {
  if constexpr (C::kF16) {
    // Element r of 16 belongs to lane r % 8 / 2, in half word r % 2 * 2 + (r < 8).
    StoreShared2(to + (half == 0 ? 2 : 0), static_cast<uint16_t>(word));
    StoreShared2(to + (half == 0 ? 6 : 4), static_cast<uint16_t>(word >> 16));
  } else {
    StoreShared4(to + half * 4, word);
  }
}

template <class C>
__device__ __forceinline__ uint32_t RoundPair(float a, float b) {
  if constexpr (C::kF16) {
    const __half2 pair = __floats2half2_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

// Stores kCount words of elements from `element` on at their InputAt addresses.
template <class C, int kCount>
__device__ __forceinline__ void PutWords(uint32_t to, int element,
                                         const uint32_t (&words)[kCount]) {
  constexpr int kApart = C::kNvfp4 ? 8 : 16;
#pragma unroll
  for (int j = 0; j < kCount; ++j) PutWord<C>(to + j * kApart, element % 16 / 8, words[j]);
}

// A pair of bf16, times the factor.
template <class C>
__device__ __forceinline__ uint32_t WithFactor(uint32_t two) {
  if constexpr (C::kNvfp4) {
    return MulBf16x2(two, 0x5d805d80u);  // 2^60
  } else if constexpr (C::kF16) {
    return RoundPair<C>(__uint_as_float(two << 16) * kInputFactor<C>,
                        __uint_as_float(two & 0xffff0000u) * kInputFactor<C>);
  } else {
    return two;
  }
}

// A lane's vectors of kElements elements in a warp's part: 32 lanes side by side, then the next.
// Offsets between them are compile-time constants: everybody waits while inputs are stored, so each
// instruction counts.
template <class C, int kElements>
struct TokenVectors {
  static constexpr int kAcross = 32 * kElements;
  static_assert(kAcross % C::kBlockK == 0 || C::kBlockK % kAcross == 0);

  int32_t element;  // of the first vector, in the warp's part
  int32_t k;        // of the first vector

  __device__ __forceinline__ TokenVectors(int warp, int lane) : element(lane * kElements) {
    const auto first = static_cast<uint32_t>(element);
    k = static_cast<int32_t>(first / C::kBlockK * C::kStageK + warp * C::kBlockK +
                             first % C::kBlockK);
  }
  // For vector i, a compile-time constant.
  static __device__ __forceinline__ constexpr int32_t FurtherK(int i) {
    if constexpr (kAcross >= C::kBlockK) return i * (kAcross / C::kBlockK) * C::kStageK;
    constexpr int kInBlock = C::kBlockK / kAcross;
    return i / kInBlock * C::kStageK + i % kInBlock * kAcross;
  }
  // Address of the first vector.
  __device__ __forceinline__ uint32_t At(uint32_t input) const {
    const auto first = static_cast<uint32_t>(element);
    return input + first / C::kBlockK * (C::kBlockK * 2) +
           InputAt<C>(static_cast<int>(first % C::kBlockK));
  }
};

// Polls one vector per lane, spread over the warp's part: when these have arrived, almost all
// others have too. Polling every slot would load L2 and delay what is awaited.
template <class C, int kElements>
__device__ __forceinline__ void AwaitSome(const OneTokenStep& step, const void* from,
                                          int32_t element_bytes, int warp, int lane) {
  const uint32_t apart = static_cast<uint32_t>(step.stages) * C::kBlockK / 32;
  const uint32_t i = lane * apart / kElements * kElements;
  const auto k =
      static_cast<int32_t>(i / C::kBlockK * C::kStageK + warp * C::kBlockK + i % C::kBlockK);
  const void* const at = static_cast<const char*>(from) + static_cast<int64_t>(k) * element_bytes;
  PollLimit<PollSite::kTokenSlots> limit;
  while (k < step.k && HasEmptySlot(LoadRelaxed(at))) limit.Count(step.poll);
  __syncwarp();
}

// Calls `take(to, vector, beside)` for all vectors of the warp's part, kBatch loads in flight;
// `to`: their address. With `await` no slot of `vector` is empty; it is zero beyond K. `beside(k,
// there)` is called before anything is awaited.
template <class C, int kElements, int kBatch, class Beside, class Take>
__device__ __forceinline__ void ForVectors(const OneTokenStep& step, const void* from,
                                           int32_t element_bytes, bool await, uint32_t input,
                                           int warp, int lane, const Beside& beside,
                                           const Take& take) {
  using Vectors = TokenVectors<C, kElements>;
  Vectors first(warp, lane);
  uint32_t to = first.At(input);
  const int32_t count = step.stages * C::kBlockK;
  for (int32_t begin = 0; begin < count; begin += Vectors::kAcross * kBatch) {
    const char* const at =
        static_cast<const char*>(from) + static_cast<int64_t>(first.k) * element_bytes;
    uint4 v[kBatch];
    bool there[kBatch];
    decltype(beside(0, true)) more[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int32_t k = first.k + Vectors::FurtherK(b);
      there[b] = first.element + b * Vectors::kAcross < count && k < step.k;
      more[b] = beside(k, there[b]);
    }
    if (await && begin == 0) {
      AwaitSome<C, kElements>(step, from, element_bytes, warp, lane);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      v[b] = make_uint4(0, 0, 0, 0);
      if (there[b]) v[b] = LoadRelaxed(at + Vectors::FurtherK(b) * element_bytes);
    }
    if (await) {
      // Re-requests all missing vectors together, to save round trips.
      PollLimit<PollSite::kTokenSlots> limit;
      bool missing = true;
      while (missing) {
        missing = false;
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (HasEmptySlot(v[b])) {
            v[b] = LoadRelaxed(at + Vectors::FurtherK(b) * element_bytes);
            missing = true;
          }
        }
        limit.Count(step.poll);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      if (first.element + b * Vectors::kAcross < count) {
        take(to + b * (Vectors::kAcross * 2), v[b], more[b]);
      }
    }
    first.element += kBatch * Vectors::kAcross;
    first.k += Vectors::FurtherK(kBatch);
    to += kBatch * (Vectors::kAcross * 2);
  }
}

// The first layer's input: bf16, complete, or polled with `await`.
template <class C>
__device__ __forceinline__ void FetchToken(const OneTokenStep& step, const void* x, bool await,
                                           uint32_t input, int warp, int lane) {
  ForVectors<C, 8, C::kPairBatch>(
      step, x, 2, await, input, warp, lane, [](int32_t, bool) { return 0; },
      [&](uint32_t to, const uint4& v, int) {
        const uint32_t words[4] = {WithFactor<C>(v.x), WithFactor<C>(v.y), WithFactor<C>(v.z),
                                   WithFactor<C>(v.w)};
        PutWords<C>(to, lane * 8, words);
      });
  __syncwarp();
}

// The previous step's outputs: 16 bits per element, ready to be multiplied.
template <class C>
__device__ __forceinline__ void FetchPairs(const OneTokenStep& step, const uint32_t* set,
                                           uint32_t input, int warp, int lane) {
  ForVectors<C, 8, C::kPairBatch>(
      step, set + step.input_at, 2, true, input, warp, lane, [](int32_t, bool) { return 0; },
      [&](uint32_t to, const uint4& v, int) {
        const uint32_t words[4] = {v.x, v.y, v.z, v.w};
        PutWords<C>(to, lane * 8, words);
      });
  __syncwarp();
}

// The residual stream, f32, times the norm's gain. A lane's sum of squares goes to `squares`, for
// the finishing warp, which applies 1 / rms to the sums.
template <class C>
__device__ __forceinline__ void FetchResidual(const OneTokenStep& step, const uint32_t* set,
                                              uint32_t input, uint32_t squares, int warp,
                                              int lane) {
  float sum = 0.0f;
  ForVectors<C, 4, C::kResidualBatch>(
      step, set + step.input_at, 4, true, input, warp, lane,
      [&](int32_t k, bool there) {
        float4 gain = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (there) gain = __ldg(reinterpret_cast<const float4*>(step.gain + k));
        return make_float4(gain.x * kInputFactor<C>, gain.y * kInputFactor<C>,
                           gain.z * kInputFactor<C>, gain.w * kInputFactor<C>);
      },
      [&](uint32_t to, const uint4& v, const float4& gain) {
        const float h[4] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                            __uint_as_float(v.w)};
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += h[j] * h[j];
        const uint32_t words[2] = {RoundPair<C>(h[0] * gain.x, h[1] * gain.y),
                                   RoundPair<C>(h[2] * gain.z, h[3] * gain.w)};
        PutWords<C>(to, lane * 4, words);
      });
  StoreShared4(squares, __float_as_uint(sum));
  __syncwarp();
}

}  // namespace aisp::cuda
