// Decode attention in one launch, a warp's computation: query rows, products of a tile, running
// softmax.
//
// Everything is transposed compared with prefill: keys are rows of the first product (S^T = K Q^T),
// and elements of V rows of the second (O^T = V^T P^T), so that up to eight query rows need one
// narrow tile and half of the accumulators. A thread (r = lane / 4, c = lane % 4) holds the scores
// of keys r and r + 8 of a tile for query rows 2c and 2c + 1.
#pragma once

#include "kernels/cuda/attention/fused_append.cuh"
#include "kernels/cuda/attention/fused_parts.cuh"

namespace aisp::cuda::fused {

__device__ __forceinline__ uint32_t Transpose8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// An item's unprocessed query rows in shared memory, for all warps of a CTA.
template <int kDim, int kRowTiles>
struct QueryRows {
  static constexpr int kStride = kDim + 8;  // puts rows in different banks
  __nv_bfloat16 elements[8 * kRowTiles * kStride];

  __device__ __forceinline__ const __nv_bfloat16* At(int row) const {
    return elements + row * kStride;
  }
  // Called by one warp; `await`: polls `from`.
  __device__ __forceinline__ void Fetch(const __nv_bfloat16* from, int32_t group, bool await,
                                        const PollTag& poll, int lane) {
    constexpr int kVectors = kDim / 8;                    // per row
    constexpr int kEach = 8 * kRowTiles * kVectors / 32;  // per lane
    uint4 v[kEach];
    PollLimit<PollSite::kAttentionRows> limit;
    bool missing = true;
    while (missing) {
      missing = false;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        v[i] = make_uint4(0, 0, 0, 0);
        const int at = i * 32 + lane;
        if (at < group * kVectors) v[i] = LoadRelaxed(from + 8 * at);
        missing |= HasEmptySlot(v[i]);
      }
      missing = await && __any_sync(~0u, missing);
      limit.Count(poll);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = i * 32 + lane;
      *reinterpret_cast<uint4*>(elements + at / kVectors * kStride + at % kVectors * 8) = v[i];
    }
  }
};

// kOne: a CTA has one item. One warp fetches its query rows for all (QueryRows); with `await` q, k
// and v are polled, since they may not be published yet (token_slots.h). kSeveral: an item's query
// rows belong to several rows of the sequence, head by head.
template <int kDim, bool kFp8, int kRowTiles, bool kOne, bool kSeveral>
struct Core : NewRows<Shape<kDim, kFp8, kRowTiles, kSeveral>, kDim, kFp8, kOne> {
  using S = Shape<kDim, kFp8, kRowTiles, kSeveral>;
  using Base = NewRows<S, kDim, kFp8, kOne>;
  using Base::a, Base::lane, Base::Wide;
  static constexpr int kKeyTiles = S::kKeysPerTile / 16;
  static constexpr int kHalfSteps = kDim / 32;  // 16-wide steps of half a head
  static constexpr float kSlack = 8.0f;         // log2 by which a score may exceed `m`
  static constexpr int kPositions = kSeveral ? kRowTiles : 1;  // positions of a thread's query rows

  float score_scale;
  const QueryRows<kDim, kRowTiles>* rows;  // kOne
  uint32_t q[kRowTiles][2 * kHalfSteps][2];
  float o[kRowTiles][kDim / 16][4];
  float m[kRowTiles][2];  // reference of the weights: within kSlack of the maximum score
  float l[kRowTiles][2];  // the thread's part of the sum of weights
  int32_t ends[kSeveral ? kRowTiles : 1][2];  // kSeveral: end of the keys that each query row
                                              // attends to

  // Index of the elements that a thread holds in 16-wide step `step`: two pairs.
  __device__ __forceinline__ int ElementAt(int step, int pair) const {
    return 16 * step + (kFp8 ? 4 * (lane % 4) + 2 * pair : 2 * (lane % 4) + 8 * pair);
  }

  // Cosines and sines for a thread's elements of a query row and of the new key. No kernel of the
  // step writes them, so they are loaded before the previous kernel is done.
  struct Angles {
    float2 c[kPositions][kHalfSteps][2], s[kPositions][kHalfSteps][2];
    float2 key_c, key_s;
  };
  __device__ __forceinline__ Angles LoadAngles(const Segment& at) const {
    const float* from = a.cos_sin + static_cast<int64_t>(at.span.context_len - 1) * kDim;
    Angles angles;
#pragma unroll
    for (int n = 0; n < kPositions; ++n) {
      const float* of_row = from;
      if constexpr (kSeveral) {
        const ItemRows item = RowsOf<true>(a, at);
        const int row = min(8 * n + lane / 4, item.count * a.group - 1) / a.group;
        of_row = a.cos_sin + static_cast<int64_t>(OldKeys(at.span) + item.first + row) * kDim;
      }
#pragma unroll
      for (int i = 0; i < kHalfSteps; ++i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          angles.c[n][i][k] = Load2<float>(of_row, ElementAt(i, k));
          angles.s[n][i][k] = Load2<float>(of_row, kDim / 2 + ElementAt(i, k));
        }
      }
    }
    if constexpr (!kSeveral) {
      const int at_key = Head<kDim>::At(0) % (kDim / 2);
      angles.key_c = Load2<float>(from, at_key);
      angles.key_s = Load2<float>(from, kDim / 2 + at_key);
    }
    return angles;
  }

  // Offset of a query row of the item in qkv.
  __device__ __forceinline__ int64_t QueryAt(const Segment& at, const ItemRows& item,
                                             int item_row) const {
    const int row = kSeveral ? item_row / a.group : 0;
    const int head = item.head * a.group + item_row - row * a.group;
    return (at.span.row_begin + item.first + row) * a.qkv_row_stride +
           static_cast<int64_t>(head) * kDim;
  }

  // Loads the item's query rows. A missing row is a copy of the last one; its result is unused.
  __device__ __forceinline__ void LoadQ(const Segment& at) {
    const auto* all = static_cast<const __nv_bfloat16*>(a.qkv);
    const ItemRows item = RowsOf<kSeveral>(a, at);
    if constexpr (kSeveral) SetEnds(at, item);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const int item_row = min(8 * n + lane / 4, item.count * a.group - 1);
      const __nv_bfloat16* from = kOne ? rows->At(item_row) : all + QueryAt(at, item, item_row);
#pragma unroll
      for (int i = 0; i < 2 * kHalfSteps; ++i) {
        q[n][i][0] = *reinterpret_cast<const uint32_t*>(from + ElementAt(i, 0));
        q[n][i][1] = *reinterpret_cast<const uint32_t*>(from + ElementAt(i, 1));
      }
    }
  }

  // Norms and rotates the loaded query rows.
  __device__ __forceinline__ void RotateQ(const Angles& angles) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      float2 low[kHalfSteps][2], high[kHalfSteps][2];
#pragma unroll
      for (int i = 0; i < kHalfSteps; ++i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          low[i][k] = Wide(q[n][i][k]);
          high[i][k] = Wide(q[n][i + kHalfSteps][k]);
        }
      }
      if (a.q_norm != nullptr) Normalise(low, high);
#pragma unroll
      for (int i = 0; i < kHalfSteps; ++i) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const float2 c = angles.c[kSeveral ? n : 0][i][k], s = angles.s[kSeveral ? n : 0][i][k];
          const float2 x = low[i][k], y = high[i][k];
          q[n][i][k] = ptx::Pack2<kFp8>(x.x * c.x - y.x * s.x, x.y * c.y - y.y * s.y);
          q[n][i + kHalfSteps][k] = ptx::Pack2<kFp8>(y.x * c.x + x.x * s.x, y.y * c.y + x.y * s.y);
        }
      }
    }
  }

  __device__ __forceinline__ void Normalise(float2 (&low)[kHalfSteps][2],
                                            float2 (&high)[kHalfSteps][2]) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kHalfSteps; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float2 x = low[i][k], y = high[i][k];
        sum += x.x * x.x + x.y * x.y + y.x * y.x + y.y * y.y;
      }
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const float inverse = rsqrtf(sum / kDim + a.norm_epsilon);
#pragma unroll
    for (int i = 0; i < kHalfSteps; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const float2 u = Load2<float>(a.q_norm, ElementAt(i, k));
        const float2 w = Load2<float>(a.q_norm, kDim / 2 + ElementAt(i, k));
        low[i][k] = make_float2(low[i][k].x * inverse * u.x, low[i][k].y * inverse * u.y);
        high[i][k] = make_float2(high[i][k].x * inverse * w.x, high[i][k].y * inverse * w.y);
      }
    }
  }
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < kDim / 16; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) o[n][j][k] = 0.0f;
      }
      m[n][0] = m[n][1] = -INFINITY;
      l[n][0] = l[n][1] = 0.0f;
    }
  }

  // Loads a whole unit: eight matrix loads, K as it is or V transposed.
  template <bool kTransposed>
  __device__ __forceinline__ void LoadUnit(uint32_t slot, uint32_t (&x)[8][4]) const {
    const uint32_t low = (lane >> 3) & 1;
    const uint32_t high = lane >> 4;
    constexpr int kPerTile = 8 / kKeyTiles;  // loads of 16 keys, each of 32 bytes per key
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // The second matrix has other keys (FP8, and K in bf16) or other elements (V in bf16).
      const bool keys_first = kFp8 || !kTransposed;
      const uint32_t key = i / kPerTile * 16 + (keys_first ? low : high) * 8 + (lane & 7);
      const uint32_t chunk = i % kPerTile * 2 + (keys_first ? high : low);
      const uint32_t from = slot + S::ChunkOffset(key, chunk);
      if constexpr (kTransposed) {
        ptx::LoadMatrix4Transposed(x[i], from);
      } else {
        ptx::LoadMatrix4(x[i], from);
      }
    }
  }

  __device__ __forceinline__ void Scores(const uint32_t (&x)[8][4],
                                         float (&s)[kKeyTiles][kRowTiles][4]) const {
    constexpr int kPerTile = 8 / kKeyTiles;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
      float sums[2][kRowTiles][4] = {};  // two chains to hide latency
#pragma unroll
      for (int i = 0; i < kPerTile; ++i) {
        const uint32_t(&k)[4] = x[t * kPerTile + i];
        if constexpr (kFp8) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t b[4] = {ptx::HalfFromE4M3(k[2 * h]), ptx::HalfFromE4M3(k[2 * h + 1]),
                                   ptx::HalfFromE4M3(k[2 * h] >> 16),
                                   ptx::HalfFromE4M3(k[2 * h + 1] >> 16)};
#pragma unroll
            for (int n = 0; n < kRowTiles; ++n)
              ptx::Mma<true>(sums[h][n], b, q[n][2 * i + h][0], q[n][2 * i + h][1]);
          }
        } else {
#pragma unroll
          for (int n = 0; n < kRowTiles; ++n)
            ptx::Mma<false>(sums[i % 2][n], k, q[n][i][0], q[n][i][1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) s[t][n][k] = sums[0][n][k] + sums[1][n][k];
      }
    }
  }

  // For query rows 2c and 2c + 1 of each tile.
  __device__ __forceinline__ void SetEnds(const Segment& at, const ItemRows& item) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int item_row = min(8 * n + 2 * (lane % 4) + j, item.count * a.group - 1);
        ends[n][j] = OldKeys(at.span) + item.first + item_row / a.group + 1;
      }
    }
  }
  // kSeveral: masks keys that a query row does not attend to.
  __device__ __forceinline__ void MaskRows(int32_t key0,
                                           float (&s)[kKeyTiles][kRowTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int32_t key = key0 + 16 * t + 8 * (k / 2) + lane / 4;
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) {
          const int32_t end = ends[n][k % 2];
          if (key >= end || (a.window > 0 && key < end - a.window)) s[t][n][k] = -INFINITY;
        }
      }
    }
  }

  // Masks keys outside [low, end). `key0`: the tile's first.
  __device__ __forceinline__ void Mask(int32_t key0, int32_t low, int32_t end,
                                       float (&s)[kKeyTiles][kRowTiles][4]) const {
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32_t key = key0 + 16 * t + 8 * h + lane / 4;
        if (key >= low && key < end) continue;
#pragma unroll
        for (int n = 0; n < kRowTiles; ++n) s[t][n][2 * h] = s[t][n][2 * h + 1] = -INFINITY;
      }
    }
  }

  // Turns scores into weights, packed and transposed for the second product.
  __device__ __forceinline__ void Softmax(float (&s)[kKeyTiles][kRowTiles][4],
                                          uint32_t (&p)[kKeyTiles][kRowTiles][2]) {
    float top[kRowTiles][2];
    bool above = false;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        top[n][j] = fmaxf(s[0][n][j], s[0][n][2 + j]);
#pragma unroll
        for (int t = 1; t < kKeyTiles; ++t)
          top[n][j] = fmaxf(top[n][j], fmaxf(s[t][n][j], s[t][n][2 + j]));
        top[n][j] *= score_scale;
        above |= top[n][j] > m[n][j] + kSlack;
        // A row may attend to no key of the first tile, but its reference must be finite.
        if constexpr (kSeveral) above |= m[n][j] == -INFINITY;
      }
    }
    if (__any_sync(~0u, above)) Raise(top);
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          s[t][n][k] = ptx::Exp2(s[t][n][k] * score_scale - m[n][k % 2]);
          l[n][k % 2] += s[t][n][k];
        }
        p[t][n][0] = Transpose8x8(ptx::Pack2<kFp8>(s[t][n][0], s[t][n][1]));
        p[t][n][1] = Transpose8x8(ptx::Pack2<kFp8>(s[t][n][2], s[t][n][3]));
      }
    }
  }

  __device__ __forceinline__ void Raise(float (&top)[kRowTiles][2]) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      float factor[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
#pragma unroll
        for (int step = 4; step < 32; step *= 2)
          top[n][j] = fmaxf(top[n][j], __shfl_xor_sync(~0u, top[n][j], step));
        const float now = fmaxf(fmaxf(m[n][j], top[n][j]), -1e30f);
        factor[j] = ptx::Exp2(m[n][j] - now);
        m[n][j] = now;
        l[n][j] *= factor[j];
      }
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) o[n][i][k] *= factor[k % 2];
      }
    }
  }

  __device__ __forceinline__ void Values(const uint32_t (&x)[8][4],
                                         const uint32_t (&p)[kKeyTiles][kRowTiles][2]) {
    constexpr int kPerTile = 8 / kKeyTiles;
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t) {
#pragma unroll
      for (int i = 0; i < kPerTile; ++i) {
        const uint32_t(&v)[4] = x[t * kPerTile + i];
        if constexpr (kFp8) {
          // A register holds {key, key + 1} x {element, element + 1}: even elements become the
          // tile's upper rows, odd ones the lower.
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t near = __byte_perm(v[2 * h], 0, 0x3120);
            const uint32_t far = __byte_perm(v[2 * h + 1], 0, 0x3120);
            const uint32_t b[4] = {ptx::HalfFromE4M3(near), ptx::HalfFromE4M3(near >> 16),
                                   ptx::HalfFromE4M3(far), ptx::HalfFromE4M3(far >> 16)};
#pragma unroll
            for (int n = 0; n < kRowTiles; ++n)
              ptx::Mma<true>(o[n][2 * i + h], b, p[t][n][0], p[t][n][1]);
          }
        } else {
#pragma unroll
          for (int n = 0; n < kRowTiles; ++n) ptx::Mma<false>(o[n][i], v, p[t][n][0], p[t][n][1]);
        }
      }
    }
  }
};

}  // namespace aisp::cuda::fused
