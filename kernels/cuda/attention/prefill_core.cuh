// Prefill attention, shared by producers and consumers: shared memory, work distribution,
// producers.
#pragma once

#include "kernels/cuda/attention/kernel_args.cuh"
#include "kernels/cuda/attention/ptx.cuh"

namespace aisp::cuda::prefill {

inline constexpr int kConsumerWarps = 8;
inline constexpr int kQueryWarps = 3;  // of the loading warpgroup
inline constexpr int kRawStages = 2;
// Named barriers: 2 and 3 turns, 4 and 5 one per consumer warpgroup, 6 and 7 a free query buffer.
// Not mbarriers, which a waiting warp polls, since this wait is long.
inline constexpr int kQueryBarrier = 6;
inline constexpr int kQueryBarrierThreads = 32 * (kConsumerWarps + kQueryWarps);

template <int kHeadDim, bool kIsFp8>
struct Traits {
  static constexpr int kDim = kHeadDim;
  static constexpr bool kFp8 = kIsFp8;
  static constexpr int kKeys = kDim == 256 ? 64 : 128;  // per tile
  // Products in f16 for FP8: it holds every e4m3 value, and one instruction converts two.
  static constexpr bool kHalf = kFp8;
  static constexpr bool kQInRegisters = kDim == 64 || (kDim == 128 && !kFp8);
  static constexpr int kStages = kDim == 64 ? 3 : 2;  // of keys, and as many of values
  static constexpr int kColumns = kDim / 64;
  static constexpr int kParts = kDim == 256 ? 2 : 1;  // products for the columns of the result
  static constexpr int kOut = kDim / kParts / 2;      // registers of such a part
  // With two buffers the next item's queries are loaded before this one's last product, and results
  // are stored through the buffer of their queries.
  static constexpr int kQBuffers = kDim == 256 ? 1 : 2;
  static constexpr uint32_t kQColumnBytes = kPrefillRows * 128;
  static constexpr uint32_t kQBytes = kQColumnBytes * kColumns;
  static constexpr uint32_t kColumnBytes = kKeys * 128;
  static constexpr uint32_t kTileBytes = kColumnBytes * kColumns;
  static constexpr uint32_t kControlBytes = 1024;
  // The copy engine's layout of a tile: rows of up to 128 bytes, longer ones in columns. FP8 is
  // converted from it.
  static constexpr uint32_t kElement = kFp8 ? 1 : 2;
  static constexpr uint32_t kRowBytes = kDim * kElement < 128 ? kDim * kElement : 128;
  static constexpr int kCopyColumns = kDim * kElement / kRowBytes;
  static constexpr uint32_t kCopyBytes = kKeys * kDim * kElement;
  static constexpr uint32_t kSharedBytes = kControlBytes + kQBuffers * kQBytes +
                                           2 * kStages * kTileBytes +
                                           (kFp8 ? kRawStages * kCopyBytes : 0);
  // Warpgroups: two consumers, one that loads (one warp of it), with FP8 one that converts.
  static constexpr int kThreads = kFp8 ? 512 : 384;
  static constexpr int kConsumerRegisters = kFp8 ? 216 : 232;
};

// One {sequence, query tile, KV head}. A tile's rows are {token, head of the group} pairs, token by
// token.
struct Work {
  RowSpan span;
  int32_t kv_head;
  int32_t token_begin;          // of the tile, among the sequence's rows
  int32_t first_position;       // of the tile
  int32_t low_tile, high_tile;  // range of key tiles, inclusive; high_tile < 0: no work is left
};

// The start of shared memory.
struct Control {
  uint64_t k_full[4], k_empty[4], v_full[4], v_empty[4];
  uint64_t raw_full[kRawStages], raw_empty[kRawStages];
  uint64_t q_full[2];
  Work work[2];  // alternating
};

// A cluster's work: the list is sorted by cost, so clusters take entries in turn, in reverse in
// every other round.
class Rounds {
 public:
  __device__ explicit Rounds(const KernelArgs& a)
      : total_(a.plan->prefill_items * a.num_kv_heads) {}
  __device__ bool Done() const { return current() >= total_; }
  __device__ int32_t current() const {
    const auto size = static_cast<int32_t>(ptx::ClusterSize());
    const int32_t clusters = static_cast<int32_t>(gridDim.x) / size;
    const int32_t cluster = static_cast<int32_t>(blockIdx.x) / size;
    return round_ * clusters + (round_ % 2 == 0 ? cluster : clusters - 1 - cluster);
  }
  // In the last, incomplete round a CTA may find no work while others do; it still takes part.
  __device__ void Next() { ++round_; }

 private:
  int32_t total_;
  int32_t round_ = 0;
};

template <class T>
__device__ __forceinline__ Work LoadWork(const KernelArgs& a, int32_t index) {
  const int2 item = a.prefill_items[index / a.num_kv_heads];
  Work w;
  w.kv_head = index % a.num_kv_heads;
  w.span = a.sequences[item.x];
  // The CTAs of a cluster have adjacent query tiles, and the union of their keys.
  const int32_t tokens = kPrefillRows / a.group;
  const auto size = static_cast<int32_t>(ptx::ClusterSize());
  w.token_begin = (item.y * size + static_cast<int32_t>(ptx::ClusterRank())) * tokens;
  const int32_t before = w.span.context_len - w.span.num_rows;
  w.first_position = before + w.token_begin;
  const int32_t first = before + item.y * size * tokens;
  w.high_tile = (min(first + size * tokens, w.span.context_len) - 1) / T::kKeys;
  const int32_t low = a.window > 0 ? max(0, first - a.window + 1) : 0;
  w.low_tile = low / T::kKeys;
  return w;
}

// A stage of a ring, and the phase of its barriers.
template <int kStages>
struct StageCursor {
  int32_t stage = 0;
  uint32_t phase = 0;
  __device__ __forceinline__ void Advance() {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Location of a lane's box of a tile: the copy engine moves boxes of `box_tokens` keys x one
// column.
struct Box {
  int32_t block = 0;
  int32_t slot = 0;
};

template <class T>
__device__ __forceinline__ Box FindBox(const KernelArgs& a, const Work& w, int32_t tile) {
  const int32_t local = static_cast<int32_t>(threadIdx.x) % 32 / T::kCopyColumns;
  const int32_t last = (w.span.context_len - 1) / a.box_tokens * a.box_tokens;
  const int32_t key = min(tile * T::kKeys + local * a.box_tokens, last);
  Box box;
  box.slot = key % a.block_tokens;
  box.block = a.block_tables[w.span.table_begin + key / a.block_tokens];
  return box;
}

// Called by a warp: every lane issues one box.
template <class T>
__device__ __forceinline__ void LoadTile(const KernelArgs& a, const CUtensorMap* map, const Work& w,
                                         const Box& box, int part, uint32_t target, uint64_t* full,
                                         uint64_t* empty, uint32_t phase) {
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t local = lane / T::kCopyColumns;
  const int32_t column = lane % T::kCopyColumns;
  const uint32_t full_at = ptx::SharedAddress(full);
  ptx::BarrierWait(ptx::SharedAddress(empty), phase ^ 1);
  if (lane == 0) ptx::BarrierExpect(full_at, T::kCopyBytes);
  __syncwarp();
  const uint32_t at =
      target + column * T::kKeys * T::kRowBytes + local * a.box_tokens * T::kRowBytes;
  const int32_t row = 2 * (box.block * a.num_kv_heads + w.kv_head) + part;
  if (ptx::ClusterSize() == 1) {
    if (local * a.box_tokens < T::kKeys) ptx::LoadTile4(at, map, full_at, 0, box.slot, column, row);
  } else if (local * a.box_tokens / (T::kKeys / 2) == static_cast<int32_t>(ptx::ClusterRank())) {
    ptx::LoadTile4ToBoth(at, map, full_at, 0, box.slot, column, row);
  }
  __syncwarp();
}

// x / group for x below 128, from DivisorOf(group).
__device__ __forceinline__ uint32_t DivisorOf(int32_t group) { return 65536u / group + 1; }
__device__ __forceinline__ int32_t Divide(int32_t x, uint32_t divisor) {
  return static_cast<int32_t>((x * divisor) >> 16);
}

__device__ __forceinline__ void CopyAsync16(uint32_t target, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
}

// Loads a query tile to shared memory as bf16 (f16), by kQueryWarps warps. Rows past the tile's end
// are copies of its last token.
template <class T>
__device__ __forceinline__ void LoadTileOfQueries(const KernelArgs& a, const Work& w, int32_t warp,
                                                  uint32_t divisor, uint32_t target) {
  constexpr int kChunks = T::kDim / 8;
  constexpr int kRows = 32 / kChunks;  // loaded by a warp at a time
  // Opaque: otherwise all rows' addresses are precomputed, for which there are no registers.
  auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  asm volatile("" : "+r"(lane));
  const int32_t chunk = lane % kChunks;
  const int64_t begin = w.span.row_begin * a.q_row_stride +
                        static_cast<int64_t>(w.kv_head) * a.group * T::kDim + chunk * 8;
#pragma unroll 2
  for (int32_t row = warp * kRows + lane / kChunks; row < kPrefillRows;
       row += kQueryWarps * kRows) {
    const int32_t local = Divide(row, divisor);
    const int32_t token = min(w.token_begin + local, w.span.num_rows - 1);
    const int64_t offset = begin + token * a.q_row_stride + (row - local * a.group) * T::kDim;
    const uint32_t at =
        target + chunk / 8 * T::kQColumnBytes + row * 128 + (((chunk % 8) ^ (row & 7)) << 4);
    if (a.q_is_f32) {
      const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(a.q) + offset);
      const float4 x = from[0];
      const float4 y = from[1];
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at),
                   "r"(ptx::Pack2<T::kHalf>(x.x, x.y)), "r"(ptx::Pack2<T::kHalf>(x.z, x.w)),
                   "r"(ptx::Pack2<T::kHalf>(y.x, y.y)), "r"(ptx::Pack2<T::kHalf>(y.z, y.w))
                   : "memory");
    } else {
      CopyAsync16(at, static_cast<const __nv_bfloat16*>(a.q) + offset);
    }
  }
}

// Converts this thread's copied pieces in place from bf16 to f16, once they have arrived.
template <class T>
__device__ __forceinline__ void HalveQueries(int32_t warp, uint32_t target) {
  constexpr int kChunks = T::kDim / 8;
  constexpr int kRows = 32 / kChunks;
  const auto lane = static_cast<int32_t>(threadIdx.x) % 32;
  const int32_t chunk = lane % kChunks;
#pragma unroll 2
  for (int32_t row = warp * kRows + lane / kChunks; row < kPrefillRows;
       row += kQueryWarps * kRows) {
    const uint32_t at =
        target + chunk / 8 * T::kQColumnBytes + row * 128 + (((chunk % 8) ^ (row & 7)) << 4);
    uint32_t x[4];
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(at)
                 : "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = ptx::Pack2</*kHalf=*/true>(__uint_as_float(x[i] << 16),
                                        __uint_as_float(x[i] & 0xffff0000u));
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
  }
}

// The warps that load queries and pass work to the consumers.
template <class T>
__device__ __forceinline__ void ProduceQueries(const KernelArgs& a, Control* control,
                                               uint32_t q_area) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32 - kConsumerWarps - 1;
  const uint32_t divisor = DivisorOf(a.group);
  StageCursor<T::kQBuffers> cursor;
  int32_t items = 0;
  int32_t slot = 0;
  for (Rounds rounds(a);; rounds.Next()) {
    Work w = {};
    w.high_tile = -1;
    if (!rounds.Done()) w = LoadWork<T>(a, rounds.current());
    if (++items > T::kQBuffers) ptx::NamedSync(kQueryBarrier + cursor.stage, kQueryBarrierThreads);
    if (warp == 0 && threadIdx.x % 32 == 0) control->work[slot] = w;
    const uint32_t target = q_area + cursor.stage * T::kQBytes;
    if (w.high_tile >= 0) LoadTileOfQueries<T>(a, w, warp, divisor, target);
    asm volatile("cp.async.wait_all;" ::: "memory");
    if constexpr (T::kHalf) {
      if (w.high_tile >= 0 && !a.q_is_f32) HalveQueries<T>(warp, target);
    }
    ptx::FenceProxyAsync();
    // Every lane arrives itself: racecheck does not know that a lane may arrive for its warp.
    ptx::BarrierArrive(ptx::SharedAddress(&control->q_full[cursor.stage]));
    if (w.high_tile < 0) return;
    cursor.Advance();
    slot ^= 1;
  }
}

// The loading warp. Consumers process keys from the last tile to the first, and each tile's values
// one step after its keys.
template <class T>
__device__ __forceinline__ void Produce(const KernelArgs& a, const CUtensorMap* map,
                                        Control* control, uint32_t k_ring, uint32_t v_ring,
                                        uint32_t raw_ring) {
  StageCursor<T::kStages> k, v;
  StageCursor<kRawStages> raw;
  const auto load = [&](const Work& w, const Box& box, int part) {
    if constexpr (T::kFp8) {
      LoadTile<T>(a, map, w, box, part, raw_ring + raw.stage * T::kCopyBytes,
                  &control->raw_full[raw.stage], &control->raw_empty[raw.stage], raw.phase);
      raw.Advance();
    } else if (part == 0) {
      LoadTile<T>(a, map, w, box, part, k_ring + k.stage * T::kTileBytes, &control->k_full[k.stage],
                  &control->k_empty[k.stage], k.phase);
      k.Advance();
    } else {
      LoadTile<T>(a, map, w, box, part, v_ring + v.stage * T::kTileBytes, &control->v_full[v.stage],
                  &control->v_empty[v.stage], v.phase);
      v.Advance();
    }
  };
  Rounds rounds(a);
  if (rounds.Done()) return;
  Work w = LoadWork<T>(a, rounds.current());
  Box box = FindBox<T>(a, w, w.high_tile);
  for (bool more = true; more;) {
    Work after = w;
    Box after_box;
    Box behind;
    for (int32_t tile = w.high_tile; tile >= w.low_tile; --tile) {
      // Table lookups are slow: done one tile ahead, and for the next item while tiles are in
      // flight.
      Box next;
      if (tile > w.low_tile) next = FindBox<T>(a, w, tile - 1);
      load(w, box, 0);
      if (tile < w.high_tile) load(w, behind, 1);
      behind = box;
      box = next;
      if (tile == max(w.high_tile - 1, w.low_tile)) {
        rounds.Next();
        more = !rounds.Done();
        if (more) after = LoadWork<T>(a, rounds.current());
        if (more) after_box = FindBox<T>(a, after, after.high_tile);
      }
    }
    load(w, behind, 1);
    w = after;
    box = after_box;
  }
}

// By a warpgroup: converts a tile from the copy engine's layout to f16, with zeros past the
// context.
template <class T>
__device__ __forceinline__ void WidenTile(int32_t valid, uint32_t source, uint32_t target) {
  constexpr uint32_t kChunks = T::kRowBytes / 16;  // of 16 elements
  constexpr int kPasses = T::kKeys * T::kCopyColumns * kChunks / 128;
  const uint32_t thread = threadIdx.x % 128;
#pragma unroll 4
  for (int i = 0; i < kPasses; ++i) {
    const uint32_t index = i * 128 + thread;
    const uint32_t chunk = index % kChunks;
    const uint32_t row = index / kChunks % T::kKeys;
    const uint32_t column = index / kChunks / T::kKeys;
    const uint32_t swizzle = T::kRowBytes == 128 ? (row & 7) : ((row >> 1) & 3);
    const uint32_t from =
        source + (column * T::kKeys + row) * T::kRowBytes + ((chunk ^ swizzle) << 4);
    uint32_t in[4];
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(in[0]), "=r"(in[1]), "=r"(in[2]), "=r"(in[3])
                 : "r"(from)
                 : "memory");
    if (static_cast<int32_t>(row) >= valid) in[0] = in[1] = in[2] = in[3] = 0;
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const uint32_t wide = 2 * (column * kChunks + chunk) + h;  // of 8 f16
      const uint32_t at =
          target + wide / 8 * T::kColumnBytes + row * 128 + (((wide % 8) ^ (row & 7)) << 4);
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at),
                   "r"(ptx::HalfFromE4M3(in[2 * h])), "r"(ptx::HalfFromE4M3(in[2 * h] >> 16)),
                   "r"(ptx::HalfFromE4M3(in[2 * h + 1])),
                   "r"(ptx::HalfFromE4M3(in[2 * h + 1] >> 16))
                   : "memory");
    }
  }
}

// FP8: the warpgroup between copy engine and consumers, in Produce's order.
template <class T>
__device__ __forceinline__ void Widen(const KernelArgs& a, Control* control, uint32_t k_ring,
                                      uint32_t v_ring, uint32_t raw_ring) {
  StageCursor<T::kStages> k, v;
  StageCursor<kRawStages> raw;
  const auto widen = [&](const Work& w, int32_t tile, uint32_t ring, uint64_t* full,
                         uint64_t* empty, StageCursor<T::kStages>& cursor) {
    ptx::BarrierWait(ptx::SharedAddress(&control->raw_full[raw.stage]), raw.phase);
    ptx::BarrierWait(ptx::SharedAddress(&empty[cursor.stage]), cursor.phase ^ 1);
    WidenTile<T>(w.span.context_len - tile * T::kKeys, raw_ring + raw.stage * T::kCopyBytes,
                 ring + cursor.stage * T::kTileBytes);
    ptx::FenceProxyAsync();
    ptx::BarrierArrive(ptx::SharedAddress(&full[cursor.stage]));
    __syncwarp();
    if (threadIdx.x % 32 < ptx::ClusterSize()) {
      ptx::BarrierArriveAt(ptx::SharedAddress(&control->raw_empty[raw.stage]), threadIdx.x % 32);
    }
    cursor.Advance();
    raw.Advance();
  };
  for (Rounds rounds(a); !rounds.Done(); rounds.Next()) {
    const Work w = LoadWork<T>(a, rounds.current());
    for (int32_t tile = w.high_tile; tile >= w.low_tile; --tile) {
      widen(w, tile, k_ring, control->k_full, control->k_empty, k);
      if (tile < w.high_tile) widen(w, tile + 1, v_ring, control->v_full, control->v_empty, v);
    }
    widen(w, w.low_tile, v_ring, control->v_full, control->v_empty, v);
  }
}

}  // namespace aisp::cuda::prefill
