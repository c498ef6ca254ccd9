// The finishing warp of the kernels for a few tokens: adds the warps' sums of a tile, scales, adds
// bias or residual, stores and publishes.
//
// Its lanes hold a tile in the products' layout: lane 4 g + t has rows g and g + 8 times tokens 2 t
// and 2 t + 1, in that order.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/cuda/linear/few_tokens_config.cuh"
#include "kernels/cuda/linear/one_token_input.cuh"
#include "kernels/cuda/linear/ptx.cuh"
#include "kernels/cuda/poll.cuh"

namespace aisp::cuda {

// Values besides the sums for a lane's rows, prefetched; unconverted, since arithmetic would wait
// for them.
struct FewTokensRows {
  int32_t row[2];
  bool has[2];
  float scale[2] = {1.0f, 1.0f};
  float bias[2] = {0.0f, 0.0f};
  float gain[2] = {0.0f, 0.0f};  // of the following norm
  float old[4] = {0.0f, 0.0f, 0.0f, 0.0f};
};

template <class C>
__device__ __forceinline__ FewTokensRows LoadRows(const FewTokensStep& step, const float* gain,
                                                  int32_t rows, int32_t tile, int lane) {
  FewTokensRows r;
  int32_t at[2];  // clamped to the last row, so that no load depends on a branch
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    r.row[i] = tile * kTokenRows + lane / 4 + 8 * i;
    r.has[i] = r.row[i] < step.n;
    at[i] = min(r.row[i], step.n - 1);
    if constexpr (C::kF16) r.scale[i] = __ldg(step.scales + at[i]);
  }
  if (step.bias != nullptr) {
    r.bias[0] = __ldg(step.bias + at[0]);
    r.bias[1] = __ldg(step.bias + at[1]);
  }
  if (gain != nullptr) {
    r.gain[0] = __ldg(gain + at[0]);
    r.gain[1] = __ldg(gain + at[1]);
  }
  if (step.store != Store::kAccumulateF32) return r;
  // A row of y belongs to this lane in every accumulating step, so it reads its own stores.
  const float* const y = static_cast<const float*>(step.y);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int32_t token = lane % 4 * 2 + i % 2;
    if (r.has[i / 2] && token < rows) r.old[i] = __ldcg(y + token * step.y_stride + r.row[i / 2]);
  }
  return r;
}

// Publishes a tile of 16 of the next step's K, as fragments of its products.
template <class C>
__device__ __forceinline__ void PublishTile(uint32_t* next, int32_t tile, int32_t rows, int lane,
                                            const float (&v)[4]) {
  // Lanes of even g get the even token, their neighbours the odd one, to form words of pairs.
  const bool odd = lane / 4 % 2 == 1;
  uint2 words;
  if constexpr (C::kF16) {
    const uint32_t tokens[2] = {RoundPair<C>(v[2], v[0]), RoundPair<C>(v[3], v[1])};
    const uint32_t other = __shfl_xor_sync(~0u, odd ? tokens[0] : tokens[1], 4);
    words = odd ? make_uint2(other, tokens[1]) : make_uint2(tokens[0], other);
  } else {
    const float top = __shfl_xor_sync(~0u, odd ? v[0] : v[1], 4);
    const float bottom = __shfl_xor_sync(~0u, odd ? v[2] : v[3], 4);
    words = odd ? make_uint2(RoundPair<C>(top, v[1]), RoundPair<C>(bottom, v[3]))
                : make_uint2(RoundPair<C>(v[0], top), RoundPair<C>(v[2], bottom));
  }
  const int32_t token = lane % 4 * 2 + (odd ? 1 : 0);
  if (token >= rows) return;
  const int32_t to = token * 4 + lane / 8;  // the lane that multiplies them
  StoreRelaxed(next + (tile / 2 * 32 + to) * 4 + tile % 2 * 2, words);
}

// Publishes the tile's sums of squares, one word per token.
__device__ __forceinline__ void PublishSquares(uint32_t* squares, int32_t tile, int lane,
                                               const float (&v)[4]) {
  float even = v[0] * v[0] + v[2] * v[2];
  float odd = v[1] * v[1] + v[3] * v[3];
#pragma unroll
  for (int offset = 16; offset > 2; offset /= 2) {
    even += __shfl_xor_sync(~0u, even, offset);
    odd += __shfl_xor_sync(~0u, odd, offset);
  }
  if (lane >= 4) return;
  StoreRelaxed(squares + tile * kFewTokens + lane * 2,
               make_uint2(__float_as_uint(even), __float_as_uint(odd)));
}

// Waits for and returns 1 / rms of the lane's two tokens.
__device__ __forceinline__ float2 AwaitNorms(const FewTokensStep& step, const uint32_t* squares,
                                             int lane) {
  constexpr int kBatch = 16;
  const auto* const from = reinterpret_cast<const uint4*>(squares);
  const int32_t count = step.k / kTokenRows * 2;  // vectors of four tokens
  float sums[4] = {};
  PollLimit<PollSite::kTokenSlots> limit;
  for (int32_t base = 0; base < count; base += 32 * kBatch) {
    const int32_t first = base + lane;
    // First one vector per lane, as AwaitVectors; then all, requesting missing ones together.
    const int32_t one = first + lane % kBatch * 32;
    while (one < count && HasEmptySlot(LoadRelaxed(from + one))) limit.Count(step.poll);
    __syncwarp();
    uint4 seen[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      seen[b] = make_uint4(0, 0, 0, 0);
      if (first + 32 * b < count) seen[b] = LoadRelaxed(from + first + 32 * b);
    }
    bool missing = true;
    while (missing) {
      missing = false;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        if (HasEmptySlot(seen[b])) {
          seen[b] = LoadRelaxed(from + first + 32 * b);
          missing = true;
        }
      }
      limit.Count(step.poll);
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      sums[0] += __uint_as_float(seen[b].x);
      sums[1] += __uint_as_float(seen[b].y);
      sums[2] += __uint_as_float(seen[b].z);
      sums[3] += __uint_as_float(seen[b].w);
    }
  }
  __syncwarp();
  float of[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int offset = 16; offset > 1; offset /= 2) {
      sums[i] += __shfl_xor_sync(~0u, sums[i], offset);
    }
    // Even lanes have tokens 0 to 3, odd ones 4 to 7.
    of[i] = __shfl_sync(~0u, sums[i], lane % 4 / 2);
  }
  const auto norm = [&](float sum) {
    return rsqrtf(sum / static_cast<float>(step.k) + step.epsilon);
  };
  const bool second = lane % 2 == 1;
  return make_float2(norm(second ? of[2] : of[0]), norm(second ? of[3] : of[1]));
}

// Where a finished tile is published: the next step's slots, null for the last step.
struct FewTokensNext {
  uint32_t* words = nullptr;
  uint32_t* squares = nullptr;  // null: no norm follows
};

// SiLU(gate) * up: rows 0 to 7 of a tile are gates, 8 to 15 ups. Two tiles make one of the next
// step's K; `kept` is the first one's.
template <class C>
__device__ __forceinline__ void StoreGated(const FewTokensStep& step, const FewTokensNext& next,
                                           int32_t rows, int32_t tile, int lane,
                                           const float (&v)[4], float (&kept)[2]) {
  const float out[2] = {v[0] / (1.0f + __expf(-v[0])) * v[2], v[1] / (1.0f + __expf(-v[1])) * v[3]};
  if (next.words != nullptr) {
    if (tile % 2 == 1) {
      const float both[4] = {kept[0] * kInputFactor<C>, kept[1] * kInputFactor<C>,
                             out[0] * kInputFactor<C>, out[1] * kInputFactor<C>};
      PublishTile<C>(next.words, tile / 2, rows, lane, both);
    }
    kept[0] = out[0];
    kept[1] = out[1];
    return;
  }
  const int32_t i = tile * 8 + lane / 4;
  if (i >= step.n / 2) return;
  auto* const y = static_cast<__nv_bfloat16*>(step.y);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int32_t token = lane % 4 * 2 + j;
    if (token < rows) y[token * step.y_stride + i] = __float2bfloat16(out[j]);
  }
}

template <class C>
__device__ __forceinline__ void StoreTile(const FewTokensStep& step, const FewTokensNext& next,
                                          const FewTokensRows& r, int32_t rows, int32_t tile,
                                          int lane, float (&v)[4], float (&kept)[2]) {
  if (step.store == Store::kSiluMulBf16) {
    StoreGated<C>(step, next, rows, tile, lane, v, kept);
    return;
  }
  const bool rounded = step.store == Store::kBf16;
  if (!rounded || next.words == nullptr) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t token = lane % 4 * 2 + i % 2;
      v[i] += r.old[i];
      if (!r.has[i / 2] || token >= rows) continue;
      const int64_t at = token * step.y_stride + r.row[i / 2];
      if (rounded) {
        static_cast<__nv_bfloat16*>(step.y)[at] = __float2bfloat16(v[i]);
      } else {
        static_cast<float*>(step.y)[at] = v[i];
      }
    }
  }
  if (next.words == nullptr) return;
  float factor[2] = {kInputFactor<C>, kInputFactor<C>};
  if (next.squares != nullptr) {
    factor[0] *= r.gain[0];
    factor[1] *= r.gain[1];
  }
  const float out[4] = {v[0] * factor[0], v[1] * factor[0], v[2] * factor[1], v[3] * factor[1]};
  PublishTile<C>(next.words, tile, rows, lane, out);
  if (next.squares != nullptr) PublishSquares(next.squares, tile, lane, v);
}

// Prefetches scales and biases of all this CTA's rows into L2, where otherwise each step's first
// tile would wait for memory, and a part of the norms' gains.
template <class C>
__device__ __forceinline__ void PrefetchRows(const FewTokensParams& p, int lane) {
  constexpr int kLine = 32;  // floats
  for (int s = 0; s < p.count; ++s) {
    const FewTokensStep& step = p.steps[s];
    const FewTokensShare share(step);
    const int32_t gain = static_cast<int32_t>(blockIdx.x + lane * gridDim.x) * kLine;
    if (step.gain != nullptr && gain < step.k) PrefetchLine(step.gain + gain);
    for (int32_t i = lane; i < share.count; i += 32) {
      const int32_t row = share.Tile(i) * kTokenRows;
      if (row >= step.n) continue;
      if (step.bias != nullptr) PrefetchLine(step.bias + row);
      if constexpr (C::kF16) PrefetchLine(step.scales + row);
    }
  }
}

// Empties the other set and lets the next kernel start; by then the previous kernel is complete and
// this launch is counted. Done by a separate warp, since its fence takes microseconds, during the
// second step, when nobody waits for L2.
__device__ __forceinline__ void LetNextStart(const FewTokensParams& p, uint32_t launches,
                                             int lane) {
  auto* const other = reinterpret_cast<uint4*>(p.sets + (launches + 1) % 2 * kFewTokensSetSlots);
  for (int i = static_cast<int>(blockIdx.x) * 32 + lane; i < kFewTokensSetSlots / 4;
       i += static_cast<int>(gridDim.x) * 32) {
    other[i] = make_uint4(kTokenEmpty, kTokenEmpty, kTokenEmpty, kTokenEmpty);
  }
  if (lane == 0) p.launches[blockIdx.x] = launches + 1;
  __threadfence();
  __syncwarp();
  AllowNextKernel();
}

}  // namespace aisp::cuda
