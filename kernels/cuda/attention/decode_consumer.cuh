// Decode attention, consumer warps: scores, softmax and values of their tiles, and the sum over
// warps.
#pragma once

#include "kernels/cuda/attention/decode_core.cuh"
#include "kernels/cuda/attention/decode_state.cuh"

namespace aisp::cuda::decode {

template <int kDim, bool kFp8, int kRowTiles>
struct Consumer {
  using T = Traits<kDim, kFp8, kRowTiles>;
  static constexpr int kSteps = kDim / 16;

  const KernelArgs& a;
  Control* control;
  uint32_t ring;
  float4* states;  // results of all warps; a warp's Q may share the memory of its own result
  int32_t stages, warp, lane, splits, split, row_group, chunk_rows;
  float score_scale = 0.0f, out_scale = 1.0f;
  int32_t first_split = 0;  // the split that has the item's first tile

  State<kDim, kRowTiles> state;
  uint32_t q[T::kQInShared ? 1 : kRowTiles][T::kQInShared ? 1 : kSteps][4];
  int32_t position[2 * kRowTiles];  // of each row

  __device__ __forceinline__ bool RowOf(const ItemCursor& w, int index, int32_t& token,
                                        int32_t& head) const {
    return FindRow(a, w.span, w.item, chunk_rows, row_group * kRowTiles * 16, index, lane, token,
                   head);
  }

  // Missing rows are copies of existing ones: rows are independent, and their results are not
  // written.
  __device__ __forceinline__ void LoadQ(const ItemCursor& w) {
    const int c = lane % 4;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      int64_t offset[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int32_t token, head;
        RowOf(w, 2 * i + j, token, head);
        token = min(token, w.span.num_rows - 1);
        position[2 * i + j] = w.span.context_len - w.span.num_rows + token;
        offset[j] = (w.span.row_begin + static_cast<int64_t>(token)) * a.q_row_stride +
                    static_cast<int64_t>(head) * kDim;
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const uint2 top = LoadQ4<kFp8>(a.q, a.q_is_f32, offset[0], s, c);
        const uint2 bottom = LoadQ4<kFp8>(a.q, a.q_is_f32, offset[1], s, c);
        if constexpr (T::kQInShared) {
          reinterpret_cast<uint4*>(OwnState())[(i * kSteps + s) * 32] =
              make_uint4(top.x, bottom.x, top.y, bottom.y);
        } else {
          q[i][s][0] = top.x;
          q[i][s][1] = bottom.x;
          q[i][s][2] = top.y;
          q[i][s][3] = bottom.y;
        }
      }
    }
  }

  __device__ __forceinline__ float4* OwnState() const {
    return states + warp * (T::kStateBytes / 16) + lane;
  }

  __device__ __forceinline__ void FetchQ(int i, int s, uint32_t (&r)[4]) const {
    if constexpr (T::kQInShared) {
      const uint4 v = reinterpret_cast<const uint4*>(OwnState())[(i * kSteps + s) * 32];
      r[0] = v.x;
      r[1] = v.y;
      r[2] = v.z;
      r[3] = v.w;
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) r[k] = q[i][s][k];
    }
  }

  // scores = Q K^T for 32 keys.
  __device__ __forceinline__ void Scores(uint32_t stage, float (&s)[kRowTiles][4][4]) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) s[i][n][k] = 0.0f;
      }
    }
    constexpr int kChunksPerLoad = 4;
    constexpr int kLoads = kDim * T::kElement / (16 * kChunksPerLoad);
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      uint32_t b[4][4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t slot = (n & 1) * 8 + (lane & 7);
        ptx::LoadMatrix4(b[n], stage + (n / 2) * T::kGroupBytes +
                                   T::ChunkOffset(slot, load * kChunksPerLoad + (lane >> 3)));
      }
      if constexpr (kFp8) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i) {
            uint32_t qa[4];
            FetchQ(i, 4 * load + j, qa);
#pragma unroll
            for (int n = 0; n < 4; ++n) {
              ptx::Mma<true>(s[i][n], qa, ptx::HalfFromE4M3(b[n][j]),
                             ptx::HalfFromE4M3(b[n][j] >> 16));
            }
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i) {
            uint32_t qa[4];
            FetchQ(i, 2 * load + j, qa);
#pragma unroll
            for (int n = 0; n < 4; ++n) ptx::Mma<false>(s[i][n], qa, b[n][2 * j], b[n][2 * j + 1]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void Mask(int32_t key0, float (&s)[kRowTiles][4][4]) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int32_t key = key0 + n * 8 + 2 * (lane % 4) + (k & 1);
          const int32_t pos = position[2 * i + k / 2];
          const bool seen = key <= pos && (a.window <= 0 || key > pos - a.window);
          if (!seen) s[i][n][k] = -INFINITY;
        }
      }
    }
  }

  // Turns scores into weights and folds the tile's maxima and sums into the state.
  __device__ __forceinline__ void Softmax(float (&s)[kRowTiles][4][4]) {
    float factor[2 * kRowTiles];
    bool moved = false;
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      const int i = r / 2;
      const int k = 2 * (r % 2);
      float top = fmaxf(s[i][0][k], s[i][0][k + 1]);
#pragma unroll
      for (int n = 1; n < 4; ++n) top = fmaxf(top, fmaxf(s[i][n][k], s[i][n][k + 1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      top = fmaxf(state.m[r], top * score_scale);
      const float safe = top == -INFINITY ? 0.0f : top;
      factor[r] = ptx::Exp2(state.m[r] - safe);
      moved |= top != state.m[r];
      state.m[r] = top;
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        s[i][n][k] = ptx::Exp2(s[i][n][k] * score_scale - safe);
        s[i][n][k + 1] = ptx::Exp2(s[i][n][k + 1] * score_scale - safe);
        sum += s[i][n][k] + s[i][n][k + 1];
      }
      state.l[r] = state.l[r] * factor[r] + sum;
    }
    if (__any_sync(~0u, moved)) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
          for (int k = 0; k < 4; ++k) state.o[i][n][k] *= factor[2 * i + k / 2];
        }
      }
    }
  }

  // o += weights V. Returns a word that depends on all loads, for BarrierArriveBehind.
  __device__ __forceinline__ uint32_t Values(uint32_t stage, const float (&s)[kRowTiles][4][4]) {
    uint32_t loaded = 0;
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      uint32_t p[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float(&c)[4] = s[i][2 * group + k / 2];
          p[i][k] = ptx::Pack2<kFp8>(c[2 * (k % 2)], c[2 * (k % 2) + 1]);
        }
      }
      const uint32_t part = stage + group * T::kGroupBytes + T::kPartBytes;
      const uint32_t slot = (lane & 7) + (lane & 8);
#pragma unroll
      for (int chunk = 0; chunk < kDim * T::kElement / 16; chunk += 2) {
        uint32_t b[4];
        ptx::LoadMatrix4Transposed(b, part + T::ChunkOffset(slot, chunk + (lane >> 4)));
        loaded |= b[0];
        if constexpr (kFp8) {
          // A register holds {key, key + 1} x {element, element + 1}: even elements go to one
          // product, odd ones to the next.
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint32_t x = __byte_perm(b[2 * h], 0, 0x3120);
            const uint32_t y = __byte_perm(b[2 * h + 1], 0, 0x3120);
            const uint32_t even0 = ptx::HalfFromE4M3(x), even1 = ptx::HalfFromE4M3(y);
            const uint32_t odd0 = ptx::HalfFromE4M3(x >> 16), odd1 = ptx::HalfFromE4M3(y >> 16);
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i) {
              ptx::Mma<true>(state.o[i][2 * (chunk + h)], p[i], even0, even1);
              ptx::Mma<true>(state.o[i][2 * (chunk + h) + 1], p[i], odd0, odd1);
            }
          }
        } else {
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i) {
            ptx::Mma<false>(state.o[i][chunk], p[i], b[0], b[1]);
            ptx::Mma<false>(state.o[i][chunk + 1], p[i], b[2], b[3]);
          }
        }
      }
    }
    return loaded;
  }

  // Slots past the context may hold anything, even NaN, and zero times NaN is not zero.
  __device__ __forceinline__ void ZeroTail(uint32_t stage, int32_t valid) const {
    constexpr int kChunks = kDim * T::kElement / 16;
    for (int32_t key = max(valid, 0); key < 32; ++key) {
      for (int c = lane; c < kChunks; c += 32) {
        const uint32_t at =
            stage + (key / 16) * T::kGroupBytes + T::kPartBytes + T::ChunkOffset(key % 16, c);
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
      }
    }
    ptx::FenceProxyAsync();  // before the copy engine writes here again
    __syncwarp();
  }

  __device__ __forceinline__ uint32_t Tile(const ItemCursor& w, int32_t tile, uint32_t stage) {
    const int32_t key0 = tile * kTileKeys;
    const int32_t first_position = w.span.context_len - w.span.num_rows;
    float s[kRowTiles][4][4];
    Scores(stage, s);
    if (key0 + kTileKeys - 1 > first_position ||
        (a.window > 0 && key0 <= w.span.context_len - 1 - a.window)) {
      Mask(key0, s);
    }
    Softmax(s);
    if (key0 + kTileKeys > w.span.context_len) ZeroTail(stage, w.span.context_len - key0);
    return Values(stage, s);
  }

  __device__ __forceinline__ void SyncConsumers() const { ptx::NamedSync(1, 32 * T::kWarps); }

  // The warps of a row group divide its columns in pairs of 8: this one's are [PairBegin, PairEnd).
  __device__ __forceinline__ int PairBegin() const {
    return min(split * PairsPerWarp(), kDim / 16);
  }
  __device__ __forceinline__ int PairEnd() const {
    return min(PairBegin() + PairsPerWarp(), kDim / 16);
  }
  __device__ __forceinline__ int PairsPerWarp() const { return max(1, kDim / 16 / splits); }

  // Adds the warps' results of row tile `i`, starting with the warp of the item's first tile, and
  // calls `use(pair, sums, norm)` for this warp's columns: sums[8] of the pair's two products.
  // Returns maxima and sums of the rows.
  template <typename Use>
  __device__ __forceinline__ float4 AddUp(int i, const Use& use) const {
    const float4* from = states + row_group * (T::kStateBytes / 16) + lane;
    const int stride = a.row_groups * (T::kStateBytes / 16);
    const int norm_at = (kRowTiles * (kDim / 8) + i) * 32;
    float4 total = make_float4(-INFINITY, -INFINITY, 0.0f, 0.0f);
    float x[T::kWarps], y[T::kWarps];
#pragma unroll
    for (int s = 0; s < T::kWarps; ++s) {
      x[s] = y[s] = -INFINITY;
      if (s < splits) {
        const float4 norm = from[((s + first_split) & (splits - 1)) * stride + norm_at];
        x[s] = norm.x;
        y[s] = norm.y;
        total.x = fmaxf(total.x, norm.x);
        total.y = fmaxf(total.y, norm.y);
      }
    }
    const float safe_x = total.x == -INFINITY ? 0.0f : total.x;
    const float safe_y = total.y == -INFINITY ? 0.0f : total.y;
#pragma unroll
    for (int s = 0; s < T::kWarps; ++s) {
      x[s] = ptx::Exp2(x[s] - safe_x);
      y[s] = ptx::Exp2(y[s] - safe_y);
      if (s < splits) {
        const float4 norm = from[((s + first_split) & (splits - 1)) * stride + norm_at];
        total.z += norm.z * x[s];
        total.w += norm.w * y[s];
      }
    }
    for (int pair = PairBegin(); pair < PairEnd(); ++pair) {
      float sums[8] = {};
#pragma unroll
      for (int s = 0; s < T::kWarps; ++s) {
        if (s < splits) {
          const float4* part =
              from + ((s + first_split) & (splits - 1)) * stride + (i * (kDim / 8) + 2 * pair) * 32;
          const float4 even = part[0];
          const float4 odd = part[32];
          sums[0] += even.x * x[s];
          sums[1] += even.y * x[s];
          sums[2] += even.z * y[s];
          sums[3] += even.w * y[s];
          sums[4] += odd.x * x[s];
          sums[5] += odd.y * x[s];
          sums[6] += odd.z * y[s];
          sums[7] += odd.w * y[s];
        }
      }
      use(pair, sums, total);
    }
    return total;
  }

  // For an item within this range: adds the warps' results and writes the rows.
  __device__ __forceinline__ void Finish(const ItemCursor& w) const {
    for (int i = 0; i < kRowTiles; ++i) {
      AddUp(i, [&](int pair, const float(&sums)[8], float4 total) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          int32_t token, head;
          if (!RowOf(w, 2 * i + j, token, head)) continue;
          WriteRow<kDim, kFp8>(a, w.span, token, head, pair, sums + 2 * j, sums + 4 + 2 * j,
                               out_scale / (j == 0 ? total.z : total.w));
        }
      });
    }
  }

  // Stores this range's part of an item for the combining kernel. A range has two places: one for
  // the item that continues after it, one for the item that began before it.
  __device__ __forceinline__ void Share(const ItemCursor& w, int32_t range) const {
    const int64_t index = static_cast<int64_t>(range) * 2 + (w.item_begin >= w.range_begin ? 1 : 0);
    float4* to = a.partials + (index * a.row_groups + row_group) * (T::kStateBytes / 16) + lane;
    for (int i = 0; i < kRowTiles; ++i) {
      const float4 total = AddUp(i, [&](int pair, const float(&sums)[8], float4) {
        float4* at = to + (i * (kDim / 8) + 2 * pair) * 32;
        at[0] = make_float4(sums[0], sums[1], sums[2], sums[3]);
        at[32] = make_float4(sums[4], sums[5], sums[6], sums[7]);
      });
      if (split == 0) to[(kRowTiles * (kDim / 8) + i) * 32] = total;
    }
  }

  __device__ __forceinline__ void Work() {
    const uint32_t full = ptx::SharedAddress(control->full);
    const uint32_t empty = ptx::SharedAddress(control->empty);
    int32_t before = 0;  // tiles processed by the CTA before this item
    for (Ranges ranges(control, a); !ranges.Done(); ranges.Next()) {
      for (ItemCursor w = CursorAt(a, ranges.current()); w.tile < w.end;
           NextItem(w, a, chunk_rows)) {
        state.Clear();
        LoadQ(w);
        if constexpr (T::kQInShared) __syncwarp();
        const int32_t tiles = min(w.item_begin + w.range.count, w.end) - w.tile;
        first_split = before & (splits - 1);
        for (int32_t i = (split - before) & (splits - 1); i < tiles; i += splits) {
          const int32_t stage = (before + i) % stages;
          ptx::BarrierWait(full + 8 * stage, ((before + i) / stages) & 1);
          if (before + i == 0) Trace(2);
          const uint32_t loaded =
              Tile(w, w.range.first + w.tile + i - w.item_begin, ring + stage * T::kStageBytes);
          __syncwarp();
          if (lane == 0) ptx::BarrierArriveBehind(empty + 8 * stage, loaded);
        }
        before += tiles;
        Trace(3);
        state.SumRows();
        state.Store(OwnState());
        SyncConsumers();
        Trace(4);
        if (tiles == w.range.count) {
          Finish(w);
        } else {
          Share(w, ranges.current());
        }
        SyncConsumers();  // before the results' memory is written again
      }
    }
  }
};

}  // namespace aisp::cuda::decode
