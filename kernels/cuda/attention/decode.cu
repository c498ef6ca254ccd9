// Decode attention. One producer warp streams key tiles (32 keys and their values) through the copy engine into a ring of
// stages; four consumer warps take tiles in turn, each with a softmax of its own, so that nothing in the main loop waits for the
// whole CTA. The query rows of a warp are the {token, head} pairs that share a KV head, packed into 16-row matrix tiles.
// FP8 values become f16 in registers, exactly; bf16 stays bf16.
#include <algorithm>

#include "kernels/cuda/attention/kernel_args.cuh"
#include "kernels/cuda/attention/ptx.cuh"

namespace aisp::cuda {
namespace {

constexpr int kMaxStages = 24;
constexpr int kControlBytes = 1024;  // barriers, at the head of shared memory

template <int kDim, bool kFp8, int kRowTiles>
struct Traits {
  static constexpr int kConsumers = kRowTiles * kDim <= 128 ? 8 : 4;  // what the registers allow
  static constexpr int kThreads = 32 * (kConsumers + 1);
  static constexpr int kMergeSlots = kConsumers == 8 ? 6 : 3;
  static constexpr int kElement = kFp8 ? 1 : 2;
  static constexpr int kRowBytes = kDim * kElement < 128 ? kDim * kElement : 128;  // of a copy box
  static constexpr int kPartBytes = 16 * kDim * kElement;  // K or V of 16 keys
  static constexpr int kGroupBytes = 2 * kPartBytes;
  static constexpr int kStageBytes = 2 * kGroupBytes;
  static constexpr int kStateVectors = kRowTiles * (kDim / 8 + 1);  // float4 per lane
  static constexpr int kStateBytes = kStateVectors * 32 * 16;
  static constexpr bool kQInShared = kRowTiles * kDim > 128;
  static constexpr int kQBytes = kQInShared ? kRowTiles * (kDim / 16) * 32 * 16 : 0;  // per warp
  static constexpr int kFixedBytes =
      kControlBytes + kMergeSlots * kStateBytes + kConsumers * kQBytes;

  // Offset of 16-byte chunk `chunk` of key `slot` (0..15) in a part, as the copy engine swizzles it.
  static __device__ __forceinline__ uint32_t ChunkOffset(uint32_t slot, uint32_t chunk) {
    constexpr uint32_t kChunks = kRowBytes / 16;
    const uint32_t swizzle = kRowBytes == 128 ? (slot & 7) : ((slot >> 1) & 3);
    return (chunk / kChunks) * (16 * kRowBytes) + slot * kRowBytes +
           (((chunk % kChunks) ^ swizzle) << 4);
  }
};

#ifdef AISP_ATTENTION_TRACE
}  // namespace
__device__ uint64_t decode_trace[kMaxCtas][8];
namespace {
__device__ __forceinline__ void Trace(int what) {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  if (threadIdx.x == 0) decode_trace[blockIdx.x][what] = now;
}
#else
__device__ __forceinline__ void Trace(int) {}
#endif

// Where a CTA stands on its part of the line; every thread walks alike.
struct Walker {
  int32_t tile, end;   // on the line
  int32_t seq, item;   // item of the sequence
  int32_t item_begin;  // of the item, on the line
  RowSpan span;
  TileRange range;
  int32_t items;  // of the sequence
};

__device__ __forceinline__ void LoadSequence(Walker& w, const KernelArgs& a, int32_t chunk_rows) {
  w.span = a.sequences[w.seq];
  w.range = DecodeTiles(w.span, a.window);
  w.items = IsDecode(w.span, a.decode_tokens)
                ? a.num_kv_heads * ((w.span.num_rows * a.group + chunk_rows - 1) / chunk_rows)
                : 0;
}

__device__ __forceinline__ Walker StartWalk(const KernelArgs& a, int32_t chunk_rows) {
  const DecodeStart start = a.plan->decode_start[blockIdx.x];
  Walker w;
  w.seq = start.seq;
  w.item = start.item;
  w.tile = start.tile;
  w.end = start.tile + start.tiles;
  w.item_begin = start.item_begin;
  w.span = start.span;
  w.range = DecodeTiles(w.span, a.window);
  w.items = start.items;
  return w;
}

__device__ __forceinline__ void NextItem(Walker& w, const KernelArgs& a, int32_t chunk_rows) {
  w.tile = w.item_begin + w.range.count;
  w.item_begin = w.tile;
  ++w.item;
  while (w.tile < w.end && w.item >= w.items) {
    ++w.seq;
    w.item = 0;
    LoadSequence(w, a, chunk_rows);
  }
}

// ---- the producer warp ----

template <class T>
__device__ __forceinline__ void Produce(const KernelArgs& a, const CUtensorMap* map, uint32_t full,
                                        uint32_t empty, uint32_t ring, int32_t stages,
                                        int32_t chunk_rows) {
  const uint32_t lane = threadIdx.x & 31;
  const uint64_t policy = ptx::EvictFirstPolicy();
  const int32_t chunks_per_block = a.block_tokens / 16;
  int32_t stage = 0;
  uint32_t phase = 1;  // a fresh barrier counts as having completed phase 1
  for (Walker w = StartWalk(a, chunk_rows); w.tile < w.end; NextItem(w, a, chunk_rows)) {
    const int32_t first = w.range.first + (w.tile - w.item_begin);
    const int32_t last =
        w.range.first + min(w.range.count, w.end - w.item_begin);  // tiles of the sequence
    const int32_t head = w.item % a.num_kv_heads;
    const int32_t last_group = (w.span.context_len - 1) / 16;
    const int32_t* table = a.block_tables + w.span.table_begin;
    // Lane i holds the block of 16-key group 2 * base + i, for the next 16 tiles.
    int32_t block = table[min(2 * first + static_cast<int32_t>(lane), last_group) / chunks_per_block];
    for (int32_t base = first; base < last; base += 16) {
      const int32_t current = block;
      block = table[min(2 * (base + 16) + static_cast<int32_t>(lane), last_group) / chunks_per_block];
      const int32_t count = min(16, last - base);
      for (int32_t i = 0; i < count; ++i) {
        const int32_t block0 = __shfl_sync(~0u, current, 2 * i);
        const int32_t block1 = __shfl_sync(~0u, current, 2 * i + 1);
        if (lane == 0) {
          const int32_t group0 = 2 * (base + i);
          const int32_t group1 = min(group0 + 1, last_group);
          ptx::BarrierWait(empty + 8 * stage, phase);
          const uint32_t bar = full + 8 * stage;
          const uint32_t target = ring + stage * T::kStageBytes;
          ptx::BarrierExpect(bar, T::kStageBytes);
          ptx::LoadTile4(target, map, bar, 0, (group0 % chunks_per_block) * 16, 0,
                         2 * (block0 * a.num_kv_heads + head), policy);
          ptx::LoadTile4(target + T::kGroupBytes, map, bar, 0, (group1 % chunks_per_block) * 16, 0,
                         2 * (block1 * a.num_kv_heads + head), policy);
        }
        if (++stage == stages) {
          stage = 0;
          phase ^= 1;
        }
      }
      __syncwarp();
    }
  }
}

// ---- a consumer warp ----

// Running softmax of a warp's rows. Row 8 * j + lane / 4 of row tile i has index 2 * i + j; maxima are in log2 units, and every
// thread of a row holds its own share of the sum until Finish.
template <int kDim, int kRowTiles>
struct State {
  float o[kRowTiles][kDim / 8][4];
  float m[2 * kRowTiles];
  float l[2 * kRowTiles];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) o[i][n][k] = 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      m[r] = -INFINITY;
      l[r] = 0.0f;
    }
  }
  __device__ __forceinline__ void SumRows() {
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      l[r] += __shfl_xor_sync(~0u, l[r], 1);
      l[r] += __shfl_xor_sync(~0u, l[r], 2);
    }
  }
  // `to` and `from`: one float4 per lane every 32.
  __device__ __forceinline__ void Store(float4* to) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        to[(i * (kDim / 8) + n) * 32] = make_float4(o[i][n][0], o[i][n][1], o[i][n][2], o[i][n][3]);
      }
      to[(kRowTiles * (kDim / 8) + i) * 32] =
          make_float4(m[2 * i], m[2 * i + 1], l[2 * i], l[2 * i + 1]);
    }
  }
  __device__ __forceinline__ void Merge(const float4* from) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      const float4 other = from[(kRowTiles * (kDim / 8) + i) * 32];
      float mine[2], theirs[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float om = j == 0 ? other.x : other.y;
        const float ol = j == 0 ? other.z : other.w;
        const float top = fmaxf(m[2 * i + j], om);
        const float safe = top == -INFINITY ? 0.0f : top;
        mine[j] = ptx::Exp2(m[2 * i + j] - safe);
        theirs[j] = ptx::Exp2(om - safe);
        m[2 * i + j] = top;
        l[2 * i + j] = l[2 * i + j] * mine[j] + ol * theirs[j];
      }
#pragma unroll
      for (int n = 0; n < kDim / 8; ++n) {
        const float4 v = from[(i * (kDim / 8) + n) * 32];
        o[i][n][0] = o[i][n][0] * mine[0] + v.x * theirs[0];
        o[i][n][1] = o[i][n][1] * mine[0] + v.y * theirs[0];
        o[i][n][2] = o[i][n][2] * mine[1] + v.z * theirs[1];
        o[i][n][3] = o[i][n][3] * mine[1] + v.w * theirs[1];
      }
    }
  }
};

// Two neighbouring elements of a query row, packed for the matrix instruction; zeros for a row that is not there.
template <bool kHalf>
__device__ __forceinline__ uint32_t LoadQ2(const KernelArgs& a, bool valid, int64_t offset) {
  if (!valid) return 0;
  if (a.q_is_f32) {
    const float2 v = *reinterpret_cast<const float2*>(static_cast<const float*>(a.q) + offset);
    return ptx::Pack2<kHalf>(v.x, v.y);
  }
  const uint32_t v =
      *reinterpret_cast<const uint32_t*>(static_cast<const __nv_bfloat16*>(a.q) + offset);
  if constexpr (!kHalf) return v;
  return ptx::Pack2<kHalf>(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}

template <int kDim, bool kFp8, int kRowTiles>
struct Consumer {
  using T = Traits<kDim, kFp8, kRowTiles>;
  static constexpr int kSteps = kDim / 16;

  const KernelArgs& a;
  uint32_t full, empty, ring;
  uint8_t* q_area;      // this warp's
  float4* merge_area;   // the CTA's
  int32_t stages, warp, lane, splits, split, row_group, chunk_rows;
  float score_scale = 0.0f, out_scale = 1.0f;

  State<kDim, kRowTiles> state;
  uint32_t q[T::kQInShared ? 1 : kRowTiles][T::kQInShared ? 1 : kSteps][4];
  int32_t position[2 * kRowTiles];  // of each row

  // The row of the item's sequence and head, or no row.
  __device__ __forceinline__ bool RowOf(const Walker& w, int index, int32_t& token,
                                        int32_t& head) const {
    const int32_t chunk = w.item / a.num_kv_heads;
    const int32_t row = chunk * chunk_rows + (row_group * kRowTiles + index / 2) * 16 +
                        (index % 2) * 8 + lane / 4;
    token = row / a.group;
    head = (w.item % a.num_kv_heads) * a.group + row % a.group;
    return token < w.span.num_rows;
  }

  __device__ __forceinline__ void LoadQ(const Walker& w) {
    const int c = lane % 4;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      int64_t offset[2];
      bool valid[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        int32_t token, head;
        valid[j] = RowOf(w, 2 * i + j, token, head);
        position[2 * i + j] =
            w.span.context_len - w.span.num_rows + min(token, w.span.num_rows - 1);
        offset[j] = (w.span.row_begin + static_cast<int64_t>(token)) * a.q_row_stride +
                    static_cast<int64_t>(head) * kDim;
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        // FP8 keys arrive with four neighbouring elements per thread, so the products run over k in that order.
        const int low = 16 * s + (kFp8 ? 4 * c : 2 * c);
        const int high = low + (kFp8 ? 2 : 8);
        uint32_t r[4] = {
            LoadQ2<kFp8>(a, valid[0], offset[0] + low), LoadQ2<kFp8>(a, valid[1], offset[1] + low),
            LoadQ2<kFp8>(a, valid[0], offset[0] + high), LoadQ2<kFp8>(a, valid[1], offset[1] + high)};
        if constexpr (T::kQInShared) {
          reinterpret_cast<uint4*>(q_area)[(i * kSteps + s) * 32 + lane] =
              make_uint4(r[0], r[1], r[2], r[3]);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k) q[i][s][k] = r[k];
        }
      }
    }
  }

  __device__ __forceinline__ void FetchQ(int i, int s, uint32_t (&r)[4]) const {
    if constexpr (T::kQInShared) {
      const uint4 v = reinterpret_cast<const uint4*>(q_area)[(i * kSteps + s) * 32 + lane];
      r[0] = v.x;
      r[1] = v.y;
      r[2] = v.z;
      r[3] = v.w;
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) r[k] = q[i][s][k];
    }
  }

  // scores = Q K^T of 32 keys.
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
              ptx::Mma<true>(s[i][n], qa, ptx::HalfFromE4M3(b[n][j]), ptx::HalfFromE4M3(b[n][j] >> 16));
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

  // o += weights V.
  __device__ __forceinline__ void Values(uint32_t stage, const float (&s)[kRowTiles][4][4]) {
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
        if constexpr (kFp8) {
          // A register holds {key, key + 1} x {element, element + 1}; even elements go to one product, odd ones to the next.
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
  }

  // Values of slots past the context may be anything, NaN too, and zero times NaN is not zero.
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

  __device__ __forceinline__ void Tile(const Walker& w, int32_t tile, uint32_t stage) {
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
    Values(stage, s);
  }

  __device__ __forceinline__ float4* Slot(int slot) const {
    return merge_area + slot * (T::kStateBytes / 16) + lane;
  }
  __device__ __forceinline__ void SyncConsumers() const { ptx::NamedSync(1, 32 * T::kConsumers); }

  // Adds the states of the splits up, pair by pair, in a fixed order; the result is in the warps of split 0. The levels use slots
  // of their own as long as there are slots; the last one takes the first level's, which all have left by then.
  __device__ __forceinline__ void MergeSplits() {
    int first_slot = 0;
    for (int half = splits / 2; half >= 1; half /= 2) {
      if (first_slot + half * a.row_groups > T::kMergeSlots) first_slot = 0;
      const int slot = first_slot + (split & (half - 1)) * a.row_groups + row_group;
      if (split >= half && split < 2 * half) state.Store(Slot(slot));
      SyncConsumers();
      if (split < half) state.Merge(Slot(slot));
      first_slot += half * a.row_groups;
    }
    SyncConsumers();
  }

  __device__ __forceinline__ void WriteOut(const Walker& w) const {
    const int c = lane % 4;
#pragma unroll
    for (int r = 0; r < 2 * kRowTiles; ++r) {
      const int i = r / 2;
      const int k = 2 * (r % 2);
      int32_t token, head;
      if (!RowOf(w, r, token, head)) continue;
      const float inverse = state.l[r] > 0.0f ? out_scale / state.l[r] : 0.0f;
      const int64_t base = (w.span.row_begin + static_cast<int64_t>(token)) * a.out_row_stride +
                           static_cast<int64_t>(head) * kDim;
#pragma unroll
      for (int n = 0; n < kDim / 8; n += 2) {
        const float* x = &state.o[i][n][k];
        const float* y = &state.o[i][n + 1][k];
        // The thread's elements, and where the pairs lie: FP8 interleaves even and odd ones.
        const float v[4] = {x[0] * inverse, (kFp8 ? y[0] : x[1]) * inverse,
                            (kFp8 ? x[1] : y[0]) * inverse, y[1] * inverse};
        const int at0 = 8 * n + (kFp8 ? 4 * c : 2 * c);
        const int at1 = at0 + (kFp8 ? 2 : 8);
        if (a.out_is_f32) {
          float* out = static_cast<float*>(a.out) + base;
          *reinterpret_cast<float2*>(out + at0) = make_float2(v[0], v[1]);
          *reinterpret_cast<float2*>(out + at1) = make_float2(v[2], v[3]);
        } else {
          __nv_bfloat16* out = static_cast<__nv_bfloat16*>(a.out) + base;
          *reinterpret_cast<uint32_t*>(out + at0) = ptx::Pack2<false>(v[0], v[1]);
          *reinterpret_cast<uint32_t*>(out + at1) = ptx::Pack2<false>(v[2], v[3]);
        }
      }
    }
  }

  __device__ __forceinline__ float4* Partial(int32_t cta, int which) const {
    const int64_t index = (static_cast<int64_t>(cta) * 2 + which) * a.row_groups + row_group;
    return a.partials + index * (T::kStateBytes / 16) + lane;
  }

  // Leaves this CTA's part of an item; the CTA that finds all others done adds them up.
  __device__ __forceinline__ void Share(const Walker& w, int32_t* last_flag) {
    const int32_t tiles = a.plan->decode_tiles;
    const int32_t ctas = a.plan->decode_ctas;
    const int32_t cta = static_cast<int32_t>(blockIdx.x);
    const int32_t first = CtaOfTile(w.item_begin, tiles, ctas);
    const int32_t last = CtaOfTile(w.item_begin + w.range.count - 1, tiles, ctas);
    if (split == 0) {
      state.Store(Partial(cta, cta == first ? 1 : 0));
      __threadfence();
    }
    SyncConsumers();
    if (warp == 0 && lane == 0) {
      const int32_t before = atomicAdd(&a.arrived[first], 1);
      *last_flag = before == last - first;
      if (before == last - first) a.arrived[first] = 0;
      __threadfence();
    }
    SyncConsumers();
    if (*last_flag != 0) {
      state.Clear();
      for (int32_t c = first + split; c <= last; c += splits) {
        state.Merge(Partial(c, c == first ? 1 : 0));
      }
      MergeSplits();
      if (split == 0) WriteOut(w);
    }
    SyncConsumers();  // the flag has been read, and the slots too
  }

  __device__ __forceinline__ void Work(int32_t* last_flag) {
    int32_t count = 0;  // tiles of the CTA so far
    for (Walker w = StartWalk(a, chunk_rows); w.tile < w.end; NextItem(w, a, chunk_rows)) {
      state.Clear();
      LoadQ(w);
      if constexpr (T::kQInShared) __syncwarp();
      const int32_t item_end = min(w.item_begin + w.range.count, w.end);
      const int32_t tiles = item_end - w.tile;
      int32_t i = split - count % splits;
      if (i < 0) i += splits;
      for (; i < tiles; i += splits) {
        const int32_t stage = (count + i) % stages;
        ptx::BarrierWait(full + 8 * stage, ((count + i) / stages) & 1);
        if (count + i == 0) Trace(2);
        Tile(w, w.range.first + w.tile + i - w.item_begin, ring + stage * T::kStageBytes);
        __syncwarp();
        if (lane == 0) ptx::BarrierArrive(empty + 8 * stage);
      }
      count += tiles;
      Trace(3);
      state.SumRows();
      MergeSplits();
      if (tiles == w.range.count) {
        if (split == 0) WriteOut(w);
        Trace(4);
      } else {
        Trace(4);
        Share(w, last_flag);
      }
    }
  }
};

template <int kDim, bool kFp8, int kRowTiles>
__global__ void __launch_bounds__(Traits<kDim, kFp8, kRowTiles>::kThreads, 1)
    DecodeKernel(const __grid_constant__ CUtensorMap map, const KernelArgs args, int32_t stages) {
  using T = Traits<kDim, kFp8, kRowTiles>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = ptx::SharedAddress(shared);
  const uint32_t full = base;
  const uint32_t empty = base + 8 * kMaxStages;
  int32_t* last_flag = reinterpret_cast<int32_t*>(shared + 16 * kMaxStages);
  const uint32_t ring = base + kControlBytes;
  uint8_t* merge = shared + kControlBytes + stages * T::kStageBytes;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Trace(0);
  if (threadIdx.x == 0) {
    ptx::PrefetchMap(&map);
    for (int s = 0; s < stages; ++s) {
      ptx::BarrierInit(full + 8 * s, 1);
      ptx::BarrierInit(empty + 8 * s, static_cast<uint32_t>(args.row_groups));
    }
    ptx::BarrierInitFence();
  }
  __syncthreads();
  ptx::WaitForPredecessor();
  ptx::LetSuccessorStart();
  Trace(1);
  const int32_t chunk_rows = 16 * kRowTiles * args.row_groups;
  if (warp == T::kConsumers) {
    Produce<T>(args, &map, full, empty, ring, stages, chunk_rows);
    return;
  }
  Consumer<kDim, kFp8, kRowTiles> consumer{
      args,
      full,
      empty,
      ring,
      merge + T::kMergeSlots * T::kStateBytes + warp * T::kQBytes,
      reinterpret_cast<float4*>(merge),
      stages,
      warp,
      static_cast<int32_t>(threadIdx.x) % 32,
      T::kConsumers / args.row_groups,
      warp / args.row_groups,
      warp % args.row_groups,
      chunk_rows};
  const float k_scale = args.device_scales != nullptr ? args.device_scales[0] : args.k_scale;
  const float v_scale = args.device_scales != nullptr ? args.device_scales[1] : args.v_scale;
  consumer.score_scale = args.scale_log2 * (kFp8 ? k_scale : 1.0f);
  consumer.out_scale = kFp8 ? v_scale : 1.0f;
  consumer.Work(last_flag);
  Trace(5);
}

using Kernel = void (*)(CUtensorMap, KernelArgs, int32_t);

struct Variant {
  int32_t head_dim;
  bool fp8;
  int32_t row_tiles;
  Kernel kernel;
  int32_t consumers;
  int32_t stage_bytes, fixed_bytes, state_bytes;
};

template <int kDim, bool kFp8, int kRowTiles>
constexpr Variant MakeVariant() {
  using T = Traits<kDim, kFp8, kRowTiles>;
  return {kDim,           kFp8,           kRowTiles,      DecodeKernel<kDim, kFp8, kRowTiles>,
          T::kConsumers,  T::kStageBytes, T::kFixedBytes, T::kStateBytes};
}

constexpr Variant kVariants[] = {
    MakeVariant<64, false, 1>(),  MakeVariant<64, false, 2>(),  MakeVariant<64, true, 1>(),
    MakeVariant<64, true, 2>(),   MakeVariant<128, false, 1>(), MakeVariant<128, false, 2>(),
    MakeVariant<128, true, 1>(),  MakeVariant<128, true, 2>(),  MakeVariant<256, false, 1>(),
    MakeVariant<256, true, 1>(),
};

const Variant* Find(int32_t head_dim, bool fp8, int32_t row_tiles) {
  for (const Variant& v : kVariants) {
    if (v.head_dim == head_dim && v.fp8 == fp8 && v.row_tiles == row_tiles) return &v;
  }
  return nullptr;
}

}  // namespace

#ifdef AISP_ATTENTION_TRACE
cudaError_t ReadDecodeTrace(uint64_t (*to)[8]) {
  return cudaMemcpyFromSymbol(to, decode_trace, sizeof(decode_trace));
}
#endif

DecodeTuning TuneDecode(int32_t head_dim, bool fp8, int32_t rows, int32_t shared_limit) {
  DecodeTuning tuning;
  tuning.row_tiles = rows > 16 && head_dim < 256 ? 2 : 1;
  const Variant* v = Find(head_dim, fp8, tuning.row_tiles);
  if (v == nullptr) return tuning;
  while (tuning.row_groups < v->consumers && tuning.chunk_rows() < rows) tuning.row_groups *= 2;
  tuning.splits = v->consumers / tuning.row_groups;
  // A multiple of the splits, so that a stage is always the same warps': only then a warp that waits for a stage's next filling
  // cannot mistake the one before the last for it.
  tuning.stages = std::min(kMaxStages, (shared_limit - v->fixed_bytes) / v->stage_bytes);
  tuning.stages -= tuning.stages % tuning.splits;
  tuning.shared_bytes = v->fixed_bytes + tuning.stages * v->stage_bytes;
  return tuning;
}

int64_t DecodePartialBytes(int32_t head_dim, const DecodeTuning& tuning, int32_t ctas) {
  const Variant* v = Find(head_dim, false, tuning.row_tiles);
  return v == nullptr ? 0 : static_cast<int64_t>(v->state_bytes) * 2 * tuning.row_groups * ctas;
}

cudaError_t PrepareDecode(int32_t head_dim, bool fp8, const DecodeTuning& tuning) {
  const Variant* v = Find(head_dim, fp8, tuning.row_tiles);
  if (v == nullptr) return cudaErrorInvalidValue;
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(v->kernel),
                              cudaFuncAttributeMaxDynamicSharedMemorySize, tuning.shared_bytes);
}

cudaError_t LaunchDecode(int32_t head_dim, bool fp8, const DecodeTuning& tuning, int32_t ctas,
                         const CUtensorMap& map, const KernelArgs& args, cudaStream_t stream) {
  const Variant* v = Find(head_dim, fp8, tuning.row_tiles);
  if (v == nullptr) return cudaErrorInvalidValue;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<uint32_t>(ctas));
  config.blockDim = dim3(static_cast<uint32_t>(32 * (v->consumers + 1)));
  config.dynamicSmemBytes = static_cast<size_t>(tuning.shared_bytes);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, v->kernel, map, args, tuning.stages);
}

}  // namespace aisp::cuda
