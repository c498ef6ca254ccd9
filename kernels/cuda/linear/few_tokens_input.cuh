// Loads a warp's part of a step's input into registers, as B fragments of its products.
//
// A warp has its own K: the same block of every stage. Inputs are published in fragment order, so
// each lane loads what it multiplies, and no warp waits for another.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/few_tokens_config.cuh"
#include "kernels/cuda/linear/one_token_input.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/poll.cuh"

namespace aisp::cuda {

// The tokens' fragments of a slice of K: vector v covers 32 of K, two steps of 16 with two words
// each.
template <class C>
struct FewTokensInput {
  uint4 v[C::kVectors];
};

// First index along K of a warp's vector.
template <class C>
__device__ __forceinline__ int32_t VectorK(int32_t first_stage, int warp, int v) {
  return (first_stage + v / C::kVectorsPerStage) * C::kStageK + warp * C::kBlockK +
         v % C::kVectorsPerStage * 32;
}

// Polls one slot per vector: when these have arrived, almost all others have too. Polling every
// slot would load L2 and delay what is awaited.
template <class C>
__device__ __forceinline__ void AwaitVectors(const FewTokensStep& step, const uint4* from,
                                             int32_t first_stage, int warp, int lane) {
  const int32_t k = VectorK<C>(first_stage, warp, lane % C::kVectors);
  PollLimit<PollSite::kTokenSlots> limit;
  while (lane < C::kVectors && k < step.k && HasEmptySlot(LoadRelaxed(from + k))) {
    limit.Count(step.poll);
  }
  __syncwarp();
}

// A warp's vectors of a slice of what the previous step has published.
template <class C>
struct FewTokensVectors {
  const uint4* at;  // the lane's first vector
  int32_t left;     // remaining elements along K; none for lanes without a token

  __device__ __forceinline__ FewTokensVectors(const FewTokensStep& step, const uint32_t* set,
                                              int32_t rows, int32_t first_stage, int warp, int lane)
      : at(reinterpret_cast<const uint4*>(set + step.input_at) + VectorK<C>(first_stage, warp, 0) +
           lane),
        left(lane / 4 < rows ? step.k - VectorK<C>(first_stage, warp, 0) : 0) {}

  // Starts loading vector v, a compile-time constant.
  __device__ __forceinline__ void Ask(int v, FewTokensInput<C>& input) const {
    const int32_t further = VectorK<C>(0, 0, v);
    input.v[v] = make_uint4(0, 0, 0, 0);
    if (further < left) input.v[v] = LoadRelaxed(at + further);
  }

  // Waits for the requested vectors. Re-requests all missing ones together, to save round trips.
  __device__ __forceinline__ void Await(const PollTag& poll, FewTokensInput<C>& input) const {
    PollLimit<PollSite::kTokenSlots> limit;
    bool missing = true;
    while (missing) {
      missing = false;
#pragma unroll
      for (int v = 0; v < C::kVectors; ++v) {
        if (HasEmptySlot(input.v[v])) {
          input.v[v] = LoadRelaxed(at + VectorK<C>(0, 0, v));
          missing = true;
        }
      }
      limit.Count(poll);
    }
    __syncwarp();
  }
};

// A slice of what the previous step has published.
template <class C>
__device__ __forceinline__ void FetchSlots(const FewTokensStep& step, const uint32_t* set,
                                           int32_t rows, int32_t first_stage, int warp, int lane,
                                           FewTokensInput<C>& input) {
  const auto* const from = reinterpret_cast<const uint4*>(set + step.input_at);
  AwaitVectors<C>(step, from, first_stage, warp, lane);
  const FewTokensVectors<C> vectors(step, set, rows, first_stage, warp, lane);
#pragma unroll
  for (int v = 0; v < C::kVectors; ++v) vectors.Ask(v, input);
  vectors.Await(step.poll, input);
}

// Transposes four lanes' four words: returns word t of each of them.
__device__ __forceinline__ uint4 TransposeWords(const uint4& w, int t) {
  const bool odd = t % 2 == 1;
  const uint32_t near0 = __shfl_xor_sync(~0u, odd ? w.x : w.y, 1);
  const uint32_t near1 = __shfl_xor_sync(~0u, odd ? w.z : w.w, 1);
  const uint4 a =
      make_uint4(odd ? near0 : w.x, odd ? w.y : near0, odd ? near1 : w.z, odd ? w.w : near1);
  const bool high = t / 2 == 1;
  const uint32_t far0 = __shfl_xor_sync(~0u, high ? a.x : a.z, 2);
  const uint32_t far1 = __shfl_xor_sync(~0u, high ? a.y : a.w, 2);
  return make_uint4(high ? far0 : a.x, high ? far1 : a.y, high ? a.z : far0, high ? a.w : far1);
}

// A lane's pairs of bf16 in a step of 16: elements 2 t, 2 t + 1 and those 8 further, as it
// multiplies them.
template <class C>
__device__ __forceinline__ uint2 FragmentOf(uint32_t low, uint32_t high) {
  if constexpr (C::kF16) {
    const auto first = [](uint32_t two) { return __uint_as_float(two << 16) * kInputFactor<C>; };
    const auto second = [](uint32_t two) {
      return __uint_as_float(two & 0xffff0000u) * kInputFactor<C>;
    };
    return make_uint2(RoundPair<C>(first(high), first(low)),
                      RoundPair<C>(second(high), second(low)));
  } else {
    return make_uint2(low, high);
  }
}

// A slice of the first step's input: rows of bf16.
template <class C>
__device__ __forceinline__ void FetchRows(const FewTokensStep& step, const __nv_bfloat16* x,
                                          int32_t rows, int32_t first_stage, int warp, int lane,
                                          FewTokensInput<C>& input) {
  const int32_t token = lane / 4;
  const int t = lane % 4;
  const int32_t k = VectorK<C>(first_stage, warp, 0);
  const __nv_bfloat16* const at = x + static_cast<int64_t>(token) * step.k + k + 8 * t;
  const int32_t left = token < rows ? step.k - k : 0;
#pragma unroll
  for (int v = 0; v < C::kVectors; ++v) {
    const int32_t further = VectorK<C>(0, 0, v);
    input.v[v] = make_uint4(0, 0, 0, 0);
    if (further < left) input.v[v] = __ldcg(reinterpret_cast<const uint4*>(at + further));
  }
#pragma unroll
  for (int v = 0; v < C::kVectors; ++v) {
    const uint4 words = TransposeWords(input.v[v], t);
    const uint2 first = FragmentOf<C>(words.x, words.y);
    const uint2 second = FragmentOf<C>(words.z, words.w);
    input.v[v] = make_uint4(first.x, first.y, second.x, second.y);
  }
}

}  // namespace aisp::cuda
