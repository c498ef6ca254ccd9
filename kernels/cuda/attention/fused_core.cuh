// Decode attention in one launch, what a warp computes: its query rows, the products of a tile, the
// running softmax.
//
// Everything is transposed against prefill: keys are the rows of the first product (S^T = K Q^T)
// and elements of V those of the second (O^T = V^T P^T), so that up to eight query rows cost one
// narrow tile and half the accumulators. A thread (r = lane / 4, c = lane % 4) holds scores of the
// keys r and r + 8 of a tile for the query rows 2c and 2c + 1.
#pragma once

#include "kernels/cuda/attention/fused_parts.cuh"
#include "kernels/cuda/attention/fused_share.cuh"
#include "kernels/cuda/attention/rope_head.cuh"

namespace aisp::cuda::fused {

__device__ __forceinline__ uint32_t Transpose8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// An item's query rows as they come from the layer in front, in shared memory, for the warps of a
// CTA.
template <int kDim, int kRowTiles>
struct QueryRows {
  static constexpr int kStride = kDim + 8;  // rows in different banks
  __nv_bfloat16 elements[8 * kRowTiles * kStride];

  __device__ __forceinline__ const __nv_bfloat16* At(int row) const {
    return elements + row * kStride;
  }
  // By one warp; `await`: `from` is polled.
  __device__ __forceinline__ void Fetch(const __nv_bfloat16* from, int32_t group, bool await,
                                        const PollTag& poll, int lane) {
    constexpr int kVectors = kDim / 8;                    // of a row
    constexpr int kEach = 8 * kRowTiles * kVectors / 32;  // of a lane
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

// The key and the value that this step adds to an item, as the pool keeps them: two pairs of
// elements a thread.
struct NewKey {
  uint32_t k[2], v[2];
};

// kOne: a CTA has one item; its query rows are fetched by one warp for all (QueryRows), and with
// `await` q, k and v are polled: they may not be published yet (token_slots.h).
template <int kDim, bool kFp8, int kRowTiles, bool kOne>
struct Core {
  using S = Shape<kDim, kFp8, kRowTiles>;
  static constexpr int kKeyTiles = S::kKeysPerTile / 16;
  static constexpr int kHalfSteps = kDim / 32;  // 16-wide steps of half a head
  static constexpr float kSlack = 8.0f;         // log2 by which a score may exceed `m`

  const FusedArgs& a;
  int lane;
  float score_scale;
  const __nv_bfloat16* qkv;
  bool await;
  const QueryRows<kDim, kRowTiles>* rows;  // kOne
  uint32_t q[kRowTiles][2 * kHalfSteps][2];
  float o[kRowTiles][kDim / 16][4];
  float m[kRowTiles][2];  // what weights are relative to: within kSlack of the greatest score
  float l[kRowTiles][2];  // a thread's share of the sum of weights

  // Elements of a query row that a thread holds of 16-wide step `step`: two pairs.
  __device__ __forceinline__ int ElementAt(int step, int pair) const {
    return 16 * step + (kFp8 ? 4 * (lane % 4) + 2 * pair : 2 * (lane % 4) + 8 * pair);
  }

  // Cosines and sines of a position, for the elements that a thread has of a query row and of the
  // new key. No kernel of the step writes them, so they are loaded before the kernel before this
  // one is done, as is all that only has to be near then.
  struct Angles {
    float2 c[kHalfSteps][2], s[kHalfSteps][2];
    float2 key_c, key_s;
  };
  __device__ __forceinline__ Angles LoadAngles(const Segment& at) const {
    const float* from = a.cos_sin + static_cast<int64_t>(at.span.context_len - 1) * kDim;
    Angles angles;
#pragma unroll
    for (int i = 0; i < kHalfSteps; ++i) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        angles.c[i][k] = Load2<float>(from, ElementAt(i, k));
        angles.s[i][k] = Load2<float>(from, kDim / 2 + ElementAt(i, k));
      }
    }
    const int at_key = Head<kDim>::At(0) % (kDim / 2);
    angles.key_c = Load2<float>(from, at_key);
    angles.key_s = Load2<float>(from, kDim / 2 + at_key);
    return angles;
  }

  // Normalises and rotates the item's query rows. A row that is not there is a copy of the last
  // one; its result is not used.
  __device__ __forceinline__ void LoadQ(const Segment& at, const Angles& angles) {
    const __nv_bfloat16* row = static_cast<const __nv_bfloat16*>(a.qkv) +
                               at.span.row_begin * a.qkv_row_stride +
                               static_cast<int64_t>(at.head) * a.group * kDim;
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const int group_row = min(8 * n + lane / 4, a.group - 1);
      const __nv_bfloat16* from = kOne ? rows->At(group_row) : row + group_row * kDim;
#pragma unroll
      for (int i = 0; i < 2 * kHalfSteps; ++i) {
        q[n][i][0] = *reinterpret_cast<const uint32_t*>(from + ElementAt(i, 0));
        q[n][i][1] = *reinterpret_cast<const uint32_t*>(from + ElementAt(i, 1));
      }
    }
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
          const float2 c = angles.c[i][k], s = angles.s[i][k], x = low[i][k], y = high[i][k];
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
  static __device__ __forceinline__ float2 Wide(uint32_t two) {
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
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

  // All of a unit: eight matrix loads, of K as it lies or of V transposed.
  template <bool kTransposed>
  __device__ __forceinline__ void LoadUnit(uint32_t slot, uint32_t (&x)[8][4]) const {
    const uint32_t low = (lane >> 3) & 1;
    const uint32_t high = lane >> 4;
    constexpr int kPerTile = 8 / kKeyTiles;  // loads of 16 keys, each of 32 bytes a key
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      // FP8, and K in bf16: the second matrix has other keys; V in bf16: other elements.
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
      float sums[2][kRowTiles][4] = {};  // two chains: the products wait for each other
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

  // Keys outside [low, end) get no weight. `key0`: the tile's first.
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

  // ---- the key that this step adds ----

  template <typename T>
  static __device__ __forceinline__ uint32_t Pack(float2 v, float scale) {
    v = make_float2(v.x * scale, v.y * scale);
    if constexpr (kFp8) return __nv_cvt_float2_to_fp8x2(v, __NV_SATFINITE, __NV_E4M3);
    return ptx::Pack2<false>(v.x, v.y);
  }
  static __device__ __forceinline__ void StorePair(uint8_t* to, uint32_t pair) {
    if constexpr (kFp8) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(pair);
    } else {
      *reinterpret_cast<uint32_t*>(to) = pair;
    }
  }

  // The new row's key and value.
  __device__ __forceinline__ void LoadNew(const Segment& at, Head<kDim>& k, Head<kDim>& v) const {
    const int64_t row = at.span.row_begin * a.qkv_row_stride;
    const int64_t key = row + static_cast<int64_t>(a.num_heads + at.head) * kDim;
    const int64_t value = key + static_cast<int64_t>(a.num_kv_heads) * kDim;
    if constexpr (kOne) {
      static_assert(Head<kDim>::kPairs == 1);
      const __nv_bfloat16* const from = qkv + Head<kDim>::At(0);
      const int64_t half[4] = {key, key + kDim / 2, value, value + kDim / 2};
      uint32_t pairs[4] = {};
      PollLimit<PollSite::kAttentionRows> limit;
      bool missing;
      do {
        missing = false;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (Head<kDim>::Mine()) pairs[i] = LoadRelaxed32(from + half[i]);
          missing |= pairs[i] == kTokenEmpty;
        }
        limit.Count(a.poll);
      } while (await && __any_sync(~0u, missing));
      k.low[0] = Wide(pairs[0]);
      k.high[0] = Wide(pairs[1]);
      v.low[0] = Wide(pairs[2]);
      v.high[0] = Wide(pairs[3]);
    } else {
      k.template Load<__nv_bfloat16>(a.qkv, key);
      v.template Load<__nv_bfloat16>(a.qkv, value);
    }
  }

  // Normalises, rotates and quantises the row's key and value and appends them to the pool.
  __device__ __forceinline__ NewKey Append(const Segment& at, const Angles& angles, float k_scale,
                                           float v_scale) const {
    Head<kDim> k, v;
    LoadNew(at, k, v);
    if (a.k_norm != nullptr) k.Normalise(a.k_norm, a.norm_epsilon);
    k.Rotate(0, angles.key_c, angles.key_s);
    const float k_factor = kFp8 ? 1.0f / k_scale : 1.0f;
    const float v_factor = kFp8 ? 1.0f / v_scale : 1.0f;
    NewKey fresh;
    fresh.k[0] = Pack<void>(k.low[0], k_factor);
    fresh.k[1] = Pack<void>(k.high[0], k_factor);
    fresh.v[0] = Pack<void>(v.low[0], v_factor);
    fresh.v[1] = Pack<void>(v.high[0], v_factor);
    const int32_t slot = a.kv_slots[at.span.row_begin];
    const int64_t part = static_cast<int64_t>(a.block_tokens) * S::kRowBytes;
    uint8_t* to =
        a.pool +
        (static_cast<int64_t>(slot / a.block_tokens) * a.num_kv_heads + at.head) * 2 * part +
        slot % a.block_tokens * S::kRowBytes + 2 * lane * S::kElement;
    if (Head<kDim>::Mine()) {
      constexpr int kHigh = kDim / 2 * S::kElement;
      StorePair(to, fresh.k[0]);
      StorePair(to + kHigh, fresh.k[1]);
      StorePair(to + part, fresh.v[0]);
      StorePair(to + part + kHigh, fresh.v[1]);
    }
    return fresh;
  }

  // Puts the new row into a unit, where zeros were copied.
  __device__ __forceinline__ void Patch(uint8_t* unit, uint32_t row,
                                        const uint32_t (&pairs)[2]) const {
    if (Head<kDim>::Mine()) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t byte = (2 * lane + h * kDim / 2) * S::kElement;
        StorePair(unit + S::ChunkOffset(row, byte / 16) + byte % 16, pairs[h]);
      }
    }
    __syncwarp();
  }
};

}  // namespace aisp::cuda::fused
