// Decode attention in one launch, the step's new keys and values: from the previous layer's output,
// normed and rotated, to the pool and to the tiles in shared memory that contain their positions.
#pragma once

#include "kernels/cuda/attention/fused_share.cuh"
#include "kernels/cuda/attention/rope_head.cuh"
#include "kernels/cuda/poll.cuh"
#include "kernels/cuda/relaxed.cuh"

namespace aisp::cuda::fused {

// The new key and value of an item in the pool's format: two pairs of elements per thread.
struct NewKey {
  uint32_t k[2], v[2];
};

// A single sequence's new keys and values that lie in a CTA's tiles, in shared memory: [key, from
// the first on][K, V][lane].
inline constexpr int kMostStaged = 16;
struct StagedRows {
  uint2 pairs[kMostStaged][2][32];
};

// Called by a warp. kOne, `await`: see Core.
template <class S, int kDim, bool kFp8, bool kOne>
struct NewRows {
  const FusedArgs& a;
  int lane;
  const __nv_bfloat16* qkv;
  bool await;

  static __device__ __forceinline__ float2 Wide(uint32_t two) {
    return make_float2(__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u));
  }

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

  // Loads the new row's key and value.
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

  // Norms, rotates and quantises the row's key and value and appends them to the pool.
  __device__ __forceinline__ NewKey Append(const Segment& at, float2 cosine, float2 sine,
                                           float k_scale, float v_scale) const {
    Head<kDim> k, v;
    LoadNew(at, k, v);
    if (a.k_norm != nullptr) k.Normalise(a.k_norm, a.norm_epsilon);
    k.Rotate(0, cosine, sine);
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

  // kSeveral: the new keys (or values) of a tile, a few at a time: as Append() for each, into the
  // unit, and by the first of a KV head's items also to the pool.
  template <bool kValues>
  __device__ __forceinline__ void AppendRows(const Segment& at, int32_t key0, float scale,
                                             uint8_t* unit) const {
    constexpr int kAtOnce = 4;
    const ItemRows item = RowsOf<S::kSeveral>(a, at);
    const int32_t old = OldKeys(at.span);
    const int32_t end = min(key0 + S::kKeysPerTile, at.span.context_len);
    const int64_t head = a.num_heads + (kValues ? a.num_kv_heads : 0) + item.head;
    const float factor = kFp8 ? 1.0f / scale : 1.0f;
#pragma unroll 1
    for (int32_t first = max(key0, old); first < end; first += kAtOnce) {
      Head<kDim> x[kAtOnce];
      float2 c[kAtOnce], s[kAtOnce];
      int32_t slots[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t key = min(first + i, end - 1);
        const int64_t row = at.span.row_begin + key - old;
        x[i].template Load<__nv_bfloat16>(a.qkv, row * a.qkv_row_stride + head * kDim);
        slots[i] = a.kv_slots[row];
        if constexpr (!kValues) {
          const float* angles = a.cos_sin + static_cast<int64_t>(key) * kDim;
          const int at_key = Head<kDim>::At(0) % (kDim / 2);
          c[i] = Load2<float>(angles, at_key);
          s[i] = Load2<float>(angles, kDim / 2 + at_key);
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= end) break;
        if constexpr (!kValues) {
          if (a.k_norm != nullptr) x[i].Normalise(a.k_norm, a.norm_epsilon);
          x[i].Rotate(0, c[i], s[i]);
        }
        const uint32_t pairs[2] = {Pack<void>(x[i].low[0], factor),
                                   Pack<void>(x[i].high[0], factor)};
        if (item.first == 0 && Head<kDim>::Mine()) {
          uint8_t* const to = PoolAt(slots[i], item.head, kValues);
          StorePair(to, pairs[0]);
          StorePair(to + kDim / 2 * S::kElement, pairs[1]);
        }
        Patch(unit, static_cast<uint32_t>(first + i - key0), pairs);
      }
    }
  }

  // kSeveral: as AppendRows() for all new keys from `first` to `end`, by all warps of a CTA: one
  // round trip for the rows instead of one for every few of them.
  __device__ __forceinline__ void Stage(const Segment& at, int32_t first, int32_t end,
                                        float k_scale, float v_scale, StagedRows& staged) const {
    constexpr int kAtOnce = 2;
    const ItemRows item = RowsOf<S::kSeveral>(a, at);
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    const int64_t key_at = static_cast<int64_t>(a.num_heads + item.head) * kDim;
    const int64_t value_at = key_at + static_cast<int64_t>(a.num_kv_heads) * kDim;
    const float factors[2] = {kFp8 ? 1.0f / k_scale : 1.0f, kFp8 ? 1.0f / v_scale : 1.0f};
#pragma unroll 1
    for (int32_t begin = first + warp; begin < end; begin += kAtOnce * kWarps) {
      Head<kDim> x[kAtOnce][2];
      float2 c[kAtOnce], s[kAtOnce];
      int32_t slots[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t key = min(begin + i * kWarps, end - 1);
        const int64_t row = at.span.row_begin + key - OldKeys(at.span);
        x[i][0].template Load<__nv_bfloat16>(a.qkv, row * a.qkv_row_stride + key_at);
        x[i][1].template Load<__nv_bfloat16>(a.qkv, row * a.qkv_row_stride + value_at);
        slots[i] = a.kv_slots[row];
        const float* angles = a.cos_sin + static_cast<int64_t>(key) * kDim;
        const int at_key = Head<kDim>::At(0) % (kDim / 2);
        c[i] = Load2<float>(angles, at_key);
        s[i] = Load2<float>(angles, kDim / 2 + at_key);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t key = begin + i * kWarps;
        if (key >= end) break;
        if (a.k_norm != nullptr) x[i][0].Normalise(a.k_norm, a.norm_epsilon);
        x[i][0].Rotate(0, c[i], s[i]);
#pragma unroll
        for (int v = 0; v < 2; ++v) {
          const uint32_t pairs[2] = {Pack<void>(x[i][v].low[0], factors[v]),
                                     Pack<void>(x[i][v].high[0], factors[v])};
          staged.pairs[key - first][v][lane] = make_uint2(pairs[0], pairs[1]);
          if (item.first == 0 && Head<kDim>::Mine()) {
            uint8_t* const to = PoolAt(slots[i], item.head, v == 1);
            StorePair(to, pairs[0]);
            StorePair(to + kDim / 2 * S::kElement, pairs[1]);
          }
        }
      }
    }
  }

  // Writes a tile's new keys (or values) into its unit. `first`: the first staged key.
  __device__ __forceinline__ void PatchStaged(const Segment& at, int32_t key0, int32_t first,
                                              bool values, const StagedRows& staged,
                                              uint8_t* unit) const {
    const int32_t end = min(key0 + S::kKeysPerTile, at.span.context_len);
#pragma unroll 1
    for (int32_t key = max(key0, first); key < end; ++key) {
      const uint2 both = staged.pairs[key - first][values ? 1 : 0][lane];
      const uint32_t pairs[2] = {both.x, both.y};
      Patch(unit, static_cast<uint32_t>(key - key0), pairs);
    }
  }

  // The address of a lane's first pair of a slot's key or value.
  __device__ __forceinline__ uint8_t* PoolAt(int32_t slot, int32_t head, bool values) const {
    const int64_t part = static_cast<int64_t>(a.block_tokens) * S::kRowBytes;
    return a.pool +
           ((static_cast<int64_t>(slot / a.block_tokens) * a.num_kv_heads + head) * 2 +
            (values ? 1 : 0)) *
               part +
           slot % a.block_tokens * S::kRowBytes + 2 * lane * S::kElement;
  }

  // Writes the new row into a unit, where zeros were copied.
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
