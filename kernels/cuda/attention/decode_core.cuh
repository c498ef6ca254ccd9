// Decode attention, shared by producers and consumers: the layout of a stage, the loop over tiles,
// the producers.
#pragma once

#include "kernels/cuda/attention/kernel_args.cuh"
#include "kernels/cuda/attention/ptx.cuh"

namespace aisp::cuda::decode {

inline constexpr int kProducers = 4;  // warps
inline constexpr int kMaxStages = 24;
inline constexpr int kControlBytes = 1024;  // barriers, at the start of shared memory

template <int kDim, bool kFp8, int kRowTiles>
struct Traits {
  static constexpr int kWarps =
      kRowTiles * kDim <= 128 ? 8 : 4;  // consumer warps, limited by registers
  static constexpr int kThreads = 32 * (kWarps + kProducers);
  static constexpr int kElement = kFp8 ? 1 : 2;
  static constexpr int kRowBytes = kDim * kElement < 128 ? kDim * kElement : 128;  // of a copy box
  static constexpr int kPartBytes = 16 * kDim * kElement;  // K or V of 16 keys
  static constexpr int kGroupBytes = 2 * kPartBytes;
  static constexpr int kStageBytes = 2 * kGroupBytes;
  // A warp's result: for each row tile kDim / 8 float4 per lane, plus one with maxima and sums of
  // two rows.
  static constexpr int kStateVectors = kRowTiles * (kDim / 8 + 1);
  static constexpr int kStateBytes = kStateVectors * 32 * 16;
  static constexpr bool kQInShared = kRowTiles * kDim > 128;  // in the memory of the warp's result
  static constexpr int kFixedBytes = kControlBytes + kWarps * kStateBytes;

  // Offset of 16-byte chunk `chunk` of key `slot` (0..15) in a part, in the copy engine's swizzle.
  static __device__ __forceinline__ uint32_t ChunkOffset(uint32_t slot, uint32_t chunk) {
    constexpr uint32_t kChunks = kRowBytes / 16;
    const uint32_t swizzle = kRowBytes == 128 ? (slot & 7) : ((slot >> 1) & 3);
    return (chunk / kChunks) * (16 * kRowBytes) + slot * kRowBytes +
           (((chunk % kChunks) ^ swizzle) << 4);
  }
};

// The start of shared memory.
struct Control {
  uint64_t full[kMaxStages];
  uint64_t empty[kMaxStages];
  uint64_t range_full[2];
  uint64_t range_empty[2];
  int32_t range[2];
};
static_assert(sizeof(Control) <= kControlBytes);

#ifdef AISP_ATTENTION_TRACE
static __device__ uint64_t trace[512][8];
__device__ __forceinline__ void Trace(int what) {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  if (threadIdx.x == 0) trace[blockIdx.x][what] = now;
}
#else
__device__ __forceinline__ void Trace(int) {}
#endif

// The position of a CTA in its range of tiles; all threads loop alike.
struct ItemCursor {
  int32_t tile, end;   // among all
  int32_t seq, item;   // item of the sequence
  int32_t item_begin;  // of the item, among all
  int32_t range_begin;
  RowSpan span;
  TileRange range;
  int32_t items;  // of the sequence
};

__device__ __forceinline__ ItemCursor CursorAt(const KernelArgs& a, int32_t range) {
  const DecodeStart start = a.plan->decode_start[range];
  ItemCursor w;
  w.seq = start.seq;
  w.item = start.item;
  w.tile = start.tile;
  w.end = start.tile + start.tiles;
  w.item_begin = start.item_begin;
  w.range_begin = start.tile;
  w.span = start.span;
  w.range = DecodeTiles(w.span, a.window);
  w.items = start.items;
  return w;
}

__device__ __forceinline__ void NextItem(ItemCursor& w, const KernelArgs& a, int32_t chunk_rows) {
  w.tile = w.item_begin + w.range.count;
  w.item_begin = w.tile;
  ++w.item;
  while (w.tile < w.end && w.item >= w.items) {
    ++w.seq;
    w.item = 0;
    w.span = a.sequences[w.seq];
    w.range = DecodeTiles(w.span, a.window);
    w.items = IsDecode(w.span, a.decode_least, a.decode_tokens)
                  ? a.num_kv_heads * ((w.span.num_rows * a.group + chunk_rows - 1) / chunk_rows)
                  : 0;
  }
}

// The ranges of a CTA: first the one with its own number, then remaining ones as its first producer
// draws them.
class Ranges {
 public:
  __device__ Ranges(Control* control, const KernelArgs& a)
      : control_(control),
        total_(a.plan->layout.ranges),
        current_(static_cast<int32_t>(blockIdx.x)) {}
  __device__ bool Done() const { return current_ >= total_; }
  __device__ int32_t current() const { return current_; }
  // Collective: all lanes of a warp.
  __device__ void Next() {
    if (total_ <= static_cast<int32_t>(gridDim.x)) {
      current_ = total_;
      return;
    }
    const int slot = drawn_ & 1;
    ptx::BarrierWait(ptx::SharedAddress(&control_->range_full[slot]), (drawn_ >> 1) & 1);
    current_ = *static_cast<volatile int32_t*>(&control_->range[slot]);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::BarrierArrive(ptx::SharedAddress(&control_->range_empty[slot]));
    ++drawn_;
  }
  // Called by one thread of the CTA per range: Draw before its tiles are loaded, Publish after.
  __device__ int32_t Draw(const KernelArgs& a) const {
    if (total_ <= static_cast<int32_t>(gridDim.x)) return total_;
    const int32_t drawn = atomicAdd(a.next_range, 1);
    // Each CTA draws until there is nothing left, so together they draw as often as there are
    // ranges.
    if (drawn == total_ - 1) *a.next_range = 0;
    return drawn + static_cast<int32_t>(gridDim.x);
  }
  __device__ void Publish(int32_t range) const {
    if (total_ <= static_cast<int32_t>(gridDim.x)) return;
    const int slot = drawn_ & 1;
    ptx::BarrierWait(ptx::SharedAddress(&control_->range_empty[slot]), ((drawn_ >> 1) & 1) ^ 1);
    *static_cast<volatile int32_t*>(&control_->range[slot]) = range;
    ptx::BarrierArrive(ptx::SharedAddress(&control_->range_full[slot]));
  }

 private:
  Control* control_;
  int32_t total_;
  int32_t current_;
  int32_t drawn_ = 0;
};

// A producer warp: loads every kWarps-th tile. Each lane computes where its own tile is; lanes take
// turns.
template <class T>
__device__ __forceinline__ void Produce(const KernelArgs& a, const CUtensorMap* map,
                                        Control* control, uint32_t ring, int32_t stages,
                                        int32_t chunk_rows, int32_t warp) {
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
  const uint64_t policy = ptx::EvictFirstPolicy();
  const int32_t groups_per_block = a.block_tokens / 16;
  const uint32_t full = ptx::SharedAddress(control->full);
  const uint32_t empty = ptx::SharedAddress(control->empty);
  int32_t before = 0;  // tiles processed by the CTA before this item
  for (Ranges ranges(control, a); !ranges.Done(); ranges.Next()) {
    int32_t drawn = 0;
    if (warp == 0 && lane == 0) drawn = ranges.Draw(a);
    for (ItemCursor w = CursorAt(a, ranges.current()); w.tile < w.end; NextItem(w, a, chunk_rows)) {
      const int32_t first = w.range.first + (w.tile - w.item_begin);
      const int32_t count = min(w.item_begin + w.range.count, w.end) - w.tile;
      const int32_t head = w.item % a.num_kv_heads;
      const int32_t last_group = (w.span.context_len - 1) / 16;
      const int32_t* table = a.block_tables + w.span.table_begin;
      for (int32_t j = (warp - before) & (kProducers - 1); j < count; j += 32 * kProducers) {
        const int32_t mine = j + kProducers * lane;
        const int32_t group0 = min(2 * (first + mine), last_group);
        const int32_t group1 = min(2 * (first + mine) + 1, last_group);
        const int32_t part0 = 2 * (table[group0 / groups_per_block] * a.num_kv_heads + head);
        const int32_t part1 = 2 * (table[group1 / groups_per_block] * a.num_kv_heads + head);
        const int32_t slot0 = group0 % groups_per_block * 16;
        const int32_t slot1 = group1 % groups_per_block * 16;
        const int32_t stage = (before + mine) % stages;
        const uint32_t parity = ((before + mine) / stages & 1) ^ 1;
        const int32_t turns = min(32, (count - j + kProducers - 1) / kProducers);
        for (int32_t turn = 0; turn < turns; ++turn) {
          if (lane == turn) {
            ptx::BarrierWait(empty + 8 * stage, parity);
            const uint32_t bar = full + 8 * stage;
            const uint32_t target = ring + stage * T::kStageBytes;
            ptx::BarrierExpect(bar, T::kStageBytes);
            ptx::LoadTile4(target, map, bar, 0, slot0, 0, part0, policy);
            ptx::LoadTile4(target + T::kGroupBytes, map, bar, 0, slot1, 0, part1, policy);
          }
          __syncwarp();
        }
      }
      before += count;
    }
    if (warp == 0 && lane == 0) ranges.Publish(drawn);
    __syncwarp();
  }
}

}  // namespace aisp::cuda::decode
