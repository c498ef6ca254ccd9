// Shared by the kernels that draw tokens: the random numbers of common/random.h, comparison of
// scores, and the slices of a row.
#pragma once

#include <climits>

#include "kernels/cuda/draw_kernels.h"
#include "kernels/cuda/launch.cuh"

namespace aisp::cuda {

constexpr int kScanThreads = 256;  // per block, with one slice
constexpr int kFours = 8;          // per thread, loaded at once

// ---- the same as common/random.h ----

__device__ __forceinline__ uint4 Philox(uint64_t key, uint4 c) {
  auto key0 = static_cast<uint32_t>(key);
  auto key1 = static_cast<uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53u, c.x), low0 = 0xD2511F53u * c.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57u, c.z), low1 = 0xCD9E8D57u * c.z;
    c = uint4{high1 ^ c.y ^ key0, low1, high0 ^ c.w ^ key1, low0};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c;
}

__device__ __forceinline__ float GumbelOf(uint32_t word) {
  const float u = (static_cast<float>(word >> 9) + 0.5f) * 0x1.0p-23f;
  return -logf(-logf(u));
}

__device__ __forceinline__ uint32_t WordOf(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// ---- comparing ----

// Larger score first; ties go to the lower token. Token INT_MAX means none.
__device__ __forceinline__ bool Better(float a, int32_t a_token, float b, int32_t b_token) {
  return a > b || (a == b && a_token < b_token);
}

__device__ __forceinline__ void WarpBest(float& score, int32_t& token) {
#pragma unroll
  for (int o = 16; o > 0; o /= 2) {
    const float other = __shfl_xor_sync(~0u, score, o);
    const int32_t other_token = __shfl_xor_sync(~0u, token, o);
    if (Better(other, other_token, score, token)) {
      score = other;
      token = other_token;
    }
  }
}

// `scores` and `tokens`: 32 each in shared memory. All threads get the result.
__device__ __forceinline__ void BlockBest(float& score, int32_t& token, float* scores,
                                          int32_t* tokens) {
  WarpBest(score, token);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __syncthreads();
  if (lane == 0) {
    scores[warp] = score;
    tokens[warp] = token;
  }
  __syncthreads();
  const int warps = blockDim.x / 32;
  score = lane < warps ? scores[lane] : -INFINITY;
  token = lane < warps ? tokens[lane] : INT_MAX;
  WarpBest(score, token);
}

__device__ __forceinline__ bool Greedy(const DrawRow& row) { return row.temperature <= 0.0f; }

__device__ __forceinline__ bool Filters(const DrawRow& row, int vocabulary) {
  return (row.top_k > 0 && row.top_k < vocabulary) || row.top_p < 1.0f || row.min_p > 0.0f;
}

// Whether the row's logits are copied and edited before the draw.
__device__ __forceinline__ bool Edits(const DrawRow& row) {
  return row.edit_count > 0 || row.mask >= 0;
}

__device__ __forceinline__ const float* ScoresOf(const DrawCall& c, const DrawRow& row, int index) {
  return Edits(row) ? c.edited + int64_t{index} * c.vocabulary
                    : c.logits + int64_t{row.logit_index} * c.stride;
}

// A slice of a row. Slices start at multiples of four, so that a Philox draw serves four tokens of
// one thread.
struct Range {
  int begin, end;
};
__device__ __forceinline__ Range SliceOf(int vocabulary, int slice) {
  const int width = (vocabulary + 4 * kDrawSlices - 1) / (4 * kDrawSlices) * 4;
  const int begin = min(vocabulary, slice * width);
  return {begin, min(vocabulary, begin + width)};
}

// Scores of groups of four tokens, from `first` on, the groups one block apart; -infinity from
// `end` on. kWide: rows start at multiples of 16 bytes and have a multiple of four tokens.
template <bool kWide>
__device__ __forceinline__ void LoadFours(const float* scores, int first, int end,
                                          float4 (&v)[kFours]) {
#pragma unroll
  for (int b = 0; b < kFours; ++b) {
    const int at = first + b * 4 * kScanThreads;
    v[b] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    if constexpr (kWide) {
      if (at < end) v[b] = __ldcg(reinterpret_cast<const float4*>(scores + at));
    } else {
      if (at < end) v[b].x = __ldcg(scores + at);
      if (at + 1 < end) v[b].y = __ldcg(scores + at + 1);
      if (at + 2 < end) v[b].z = __ldcg(scores + at + 2);
      if (at + 3 < end) v[b].w = __ldcg(scores + at + 3);
    }
  }
}

// Calls `take(token, scores)` for each group of four tokens of this thread's part of a slice.
template <bool kWide, class Take>
__device__ __forceinline__ void ForFours(const float* scores, const Range& slice,
                                         const Take& take) {
  for (int first = slice.begin + 4 * static_cast<int>(threadIdx.x); first < slice.end;
       first += 4 * kScanThreads * kFours) {
    float4 v[kFours];
    LoadFours<kWide>(scores, first, slice.end, v);
#pragma unroll
    for (int b = 0; b < kFours; ++b) {
      const float four[4] = {v[b].x, v[b].y, v[b].z, v[b].w};
      take(first + b * 4 * kScanThreads, four);
    }
  }
}

}  // namespace aisp::cuda
