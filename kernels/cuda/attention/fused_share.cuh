// Decode attention in one launch, work distribution: the concatenated tiles (fused.cuh), a CTA's
// loop over its share, and the copies of keys and values that run ahead of it.
//
// A share is processed from its end to its beginning. First comes what other CTAs wait for, the
// beginning of an item that continues in the next CTA; last comes what this CTA waits for, the end
// of an item that began before.
#pragma once

#include "kernels/cuda/attention/fused.cuh"
#include "kernels/cuda/attention/ptx.cuh"

namespace aisp::cuda::fused {

inline constexpr int kWarps = 4;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kUnits = 3;         // per warp's ring
inline constexpr int kUnitBytes = 4096;  // K or V of a tile
inline constexpr int kRingBytes = kWarps * kUnits * kUnitBytes;
// The cost of starting an item, in tiles: items count as that much longer, before their first tile.
inline constexpr int kItemCost = 2;

template <int kKeysPerTile, bool kSeveral>
class SegmentIterator;

// kSeveralRows: a sequence may have several rows in the step.
template <int kDim, bool kFp8, int kRowTiles, bool kSeveralRows = false>
struct Shape {
  static constexpr bool kSeveral = kSeveralRows;
  static constexpr int kElement = kFp8 ? 1 : 2;
  static constexpr int kRowBytes = kDim * kElement;  // 256, 128 or 64
  static constexpr int kKeysPerTile = kUnitBytes / kRowBytes;
  static constexpr int kGroups = kKeysPerTile / 16;  // runs of slots that are always in one block
  static constexpr int kBatch = 32 / kGroups;        // tiles whose slots a warp looks up at once
  using Segments = SegmentIterator<kKeysPerTile, kSeveral>;

  // XORed with a row's chunk number, so that equal chunks of eight rows are in different banks.
  static __device__ __forceinline__ uint32_t Swizzle(uint32_t row) {
    return kRowBytes == 64 ? (row >> 1) & 3 : row & 7;
  }
  static __device__ __forceinline__ uint32_t ChunkOffset(uint32_t row, uint32_t chunk) {
    return row * kRowBytes + ((chunk ^ Swizzle(row)) << 4);
  }
};

// An item, and the range of its tiles that this CTA processes.
struct Segment {
  RowSpan span;
  int32_t seq;
  int32_t head;        // index over KV heads, times the items per head (RowsOf)
  int32_t first;       // the item's first tile in the sequence
  int32_t count;       // number of the item's tiles
  int32_t flat_begin;  // position of its first tile among all tiles
  int32_t lo, hi;      // this CTA's range of the item's tiles; hi <= 0: its share ends before the
                       // item's first tile
};

// Index of the first key that the step adds.
__device__ __forceinline__ int32_t OldKeys(const RowSpan& span) {
  return span.context_len - span.num_rows;
}
// The first key that any row of the sequence attends to.
__device__ __forceinline__ int32_t LowestKey(const FusedArgs& a, const RowSpan& span) {
  return a.window > 0 ? max(0, OldKeys(span) + 1 - a.window) : 0;
}
// Items per KV head of a sequence.
template <bool kSeveral>
__device__ __forceinline__ int32_t ItemsOf(const FusedArgs& a, const RowSpan& span) {
  return kSeveral && span.num_rows > a.item_tokens ? 2 : 1;
}

// An item's KV head, and its rows of the sequence.
struct ItemRows {
  int32_t head, first, count;
};
template <bool kSeveral>
__device__ __forceinline__ ItemRows RowsOf(const FusedArgs& a, const Segment& at) {
  if constexpr (!kSeveral) return {at.head, 0, 1};
  const int32_t items = ItemsOf<kSeveral>(a, at.span);
  const int32_t first = (at.head & (items - 1)) * a.item_tokens;
  return {at.head >> (items - 1), first, min(a.item_tokens, at.span.num_rows - first)};
}

// The tiles of all items concatenated, and their division among CTAs.
struct FlatTiles {
  int32_t total;
  int32_t share;  // tiles per CTA
  int32_t per;    // sequences per thread, in the scan
  bool padded;    // items are padded to whole shares, so that no CTA works on two
  __device__ __forceinline__ int32_t cost() const { return padded ? 0 : kItemCost; }
  // The length of an item with `tiles` tiles.
  __device__ __forceinline__ int32_t Length(int32_t tiles) const {
    return padded ? (tiles + share - 1) / share * share : tiles == 0 ? 0 : tiles + kItemCost;
  }
};

struct FlatScratch {
  int32_t prefix[kThreads];
  int32_t sums[kWarps];
  int32_t parts[kWarps][4];
  int32_t warp_totals[kWarps];
};

// The tiles of a sequence: {first, count}; {0, 0} for padding and for prompts.
template <int kKeysPerTile>
__device__ __forceinline__ int2 TilesOf(const FusedArgs& a, int32_t seq, RowSpan& span) {
  if (seq >= a.num_sequences) return make_int2(0, 0);
  const int4 fields = __ldg(reinterpret_cast<const int4*>(a.sequences) + seq);
  // Usually row number and sequence number are equal: then both loads are issued at once.
  int32_t position = __ldg(a.positions + min(seq, a.rows - 1));
  span = {fields.x, fields.y, fields.z, fields.w};
  if (span.num_rows <= 0 || span.num_rows > a.most_rows) return make_int2(0, 0);
  if (span.row_begin != seq) position = __ldg(a.positions + span.row_begin);
  if (position < 0) return make_int2(0, 0);
  const int32_t first = LowestKey(a, span) / kKeysPerTile;
  return make_int2(first, (span.context_len + kKeysPerTile - 1) / kKeysPerTile - first);
}

// Called by the whole CTA.
// Long: splitting the function changes register allocation even if all parts are inlined.
template <int kKeysPerTile, bool kSeveral>
__device__ __forceinline__ FlatTiles FlattenTiles(const FusedArgs& a, FlatScratch& s) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int32_t ctas = static_cast<int32_t>(gridDim.x);
  FlatTiles flat;
  flat.per = (a.num_sequences + kThreads - 1) / kThreads;
  flat.padded = false;
  int32_t mine = 0;
  int32_t length = 0;
  int32_t items = 1;
#pragma unroll 1
  for (int i = 0; i < flat.per; ++i) {
    RowSpan span;
    mine = TilesOf<kKeysPerTile>(a, thread * flat.per + i, span).y;
    items = ItemsOf<kSeveral>(a, span);
    length += items * flat.Length(mine);
  }
  const int32_t sum = __reduce_add_sync(~0u, length);
  if (lane == 0) s.sums[warp] = sum;
  __syncthreads();
  const int32_t all = s.sums[0] + s.sums[1] + s.sums[2] + s.sums[3];
  flat.share = max(kWarps, (all * a.num_kv_heads + ctas - 1) / ctas);
  if (flat.per == 1) {
    // Padding is used if shares stay about equal and no CTA then has parts of two items. The cost
    // of items is equal for all then, and left out.
    int32_t count = __syncthreads_count(mine > 0);
    if constexpr (kSeveral) count += __syncthreads_count(mine > 0 && items > 1);
    const int32_t least =
        max(kWarps, ((all - count * kItemCost) * a.num_kv_heads + ctas - 1) / ctas);
    int32_t fits = -1;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int32_t share = least + k + (k == 3 ? 1 : 0);
      const int32_t parts = __reduce_add_sync(~0u, items * ((mine + share - 1) / share));
      if (lane == 0) s.parts[warp][k] = parts;
    }
    __syncthreads();
#pragma unroll
    for (int k = 3; k >= 0; --k) {
      const int32_t parts = s.parts[0][k] + s.parts[1][k] + s.parts[2][k] + s.parts[3][k];
      if (parts * a.num_kv_heads <= ctas) fits = least + k + (k == 3 ? 1 : 0);
    }
    if (fits > 0) {
      flat.padded = true;
      flat.share = fits;
      length = items * flat.Length(mine);
    }
  }
  length *= a.num_kv_heads;
  int32_t inclusive = length;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int32_t other = __shfl_up_sync(~0u, inclusive, step);
    if (lane >= step) inclusive += other;
  }
  if (lane == 31) s.warp_totals[warp] = inclusive;
  __syncthreads();
  int32_t before = 0;
  flat.total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += s.warp_totals[w];
    flat.total += s.warp_totals[w];
  }
  s.prefix[thread] = before + inclusive - length;
  __syncthreads();
  return flat;
}

template <int kKeysPerTile, bool kSeveral>
class SegmentIterator {
 public:
  Segment at;

  // For a CTA that has only the item `only`.
  __device__ __forceinline__ explicit SegmentIterator(const Segment& only)
      : at(only), begin_(INT32_MAX) {}

  // Starts at the end of the non-empty share [begin, end) of the tiles. Collective: all lanes of a
  // warp.
  __device__ __forceinline__ SegmentIterator(const FusedArgs& a, const FlatTiles& flat,
                                             const FlatScratch& s, int32_t begin, int32_t end)
      : begin_(begin) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int32_t last = end - 1;
    int32_t count = 0;
#pragma unroll
    for (int i = 0; i < kThreads / 32; ++i) count += s.prefix[lane + 32 * i] <= last ? 1 : 0;
    const int32_t chunk = __reduce_add_sync(~0u, count) - 1;
    int32_t seq_begin = s.prefix[chunk];
    at.seq = chunk * flat.per;
    if (flat.per > 1) {
      RowSpan span;
      int32_t mine = 0;
      if (lane < flat.per) {
        mine = a.num_kv_heads * flat.Length(TilesOf<kKeysPerTile>(a, at.seq + lane, span).y);
        mine *= ItemsOf<kSeveral>(a, span);
      }
      int32_t before = mine;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int32_t other = __shfl_up_sync(~0u, before, step);
        if (lane >= step) before += other;
      }
      before -= mine;
      const int which =
          31 - __clz(static_cast<int>(__ballot_sync(~0u, mine > 0 && seq_begin + before <= last)));
      at.seq += which;
      seq_begin += __shfl_sync(~0u, before, which);
    }
    const int2 tiles = TilesOf<kKeysPerTile>(a, at.seq, at.span);
    at.first = tiles.x;
    at.count = tiles.y;
    const int32_t length = flat.Length(tiles.y);
    at.head = (last - seq_begin) / length;
    at.flat_begin = seq_begin + at.head * length + flat.cost();
    at.hi = min(end - at.flat_begin, at.count);
    at.lo = max(begin - at.flat_begin, 0);
  }

  // Moves to the previous item; false: it is not this CTA's.
  __device__ __forceinline__ bool Next(const FusedArgs& a) {
    if (at.flat_begin - kItemCost <= begin_) return false;  // always true with padding
    if (--at.head < 0) {
      int2 tiles;
      do {
        tiles = TilesOf<kKeysPerTile>(a, --at.seq, at.span);
      } while (tiles.y == 0);
      at.head = a.num_kv_heads * ItemsOf<kSeveral>(a, at.span) - 1;
      at.first = tiles.x;
      at.count = tiles.y;
    }
    at.flat_begin -= at.count + kItemCost;
    at.hi = at.count;
    at.lo = max(begin_ - at.flat_begin, 0);
    return true;
  }

  // A warp computes every fourth tile; returns its last one in the segment, below `lo` if it has
  // none.
  __device__ __forceinline__ int32_t Top() const {
    const int32_t warp = static_cast<int32_t>(threadIdx.x) / 32;
    return at.hi - 1 - ((at.flat_begin + at.hi - 1 - warp) & (kWarps - 1));
  }

 private:
  int32_t begin_;
};

// How far a warp's copies have looked ahead.
struct Ahead {
  int32_t top, left, next_left;
  uint4 lane;  // offset, next offset, bounds of both; different in each lane
};

// Copies a warp's keys and values ahead of its loop, tile by tile (K, V, K, V, ...), each unit as
// one group of asynchronous copies.
template <class S>
class KvCopies {
 public:
  // `segments`: the warp's, in shared memory.
  __device__ __forceinline__ KvCopies(const FusedArgs& a, typename S::Segments& segments)
      : a_(a), segments_(segments), top_(segments.Top()) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy_));
    const uint32_t lane = threadIdx.x % 32;
    constexpr uint32_t kChunks = S::kRowBytes / 16;
    lane_target_ = S::ChunkOffset(lane / kChunks, lane % kChunks);
  }

  // Continues from another object's State(); `segments`: that one's.
  __device__ __forceinline__ KvCopies(const FusedArgs& a, typename S::Segments& segments,
                                      const Ahead& ahead)
      : KvCopies(a, segments) {
    top_ = ahead.top;
    left_ = ahead.left;
    next_left_ = ahead.next_left;
    offset_ = ahead.lane.x;
    next_offset_ = ahead.lane.y;
    bounds_ = ahead.lane.z & 0xffff;
    next_bounds_ = ahead.lane.z >> 16;
  }
  // Valid after the first Switch().
  __device__ __forceinline__ Ahead State() const {
    const uint32_t next_offset = OffsetOf(next_offset_, next_block_);
    return {top_, left_, next_left_,
            make_uint4(offset_, next_offset, bounds_ | next_bounds_ << 16, 0)};
  }

  // Copies the next unit, if any, to `slot` (shared address). Always commits one group.
  __device__ __forceinline__ void Copy(uint32_t slot) {
    if (left_ == 0) Switch();
    if (left_ > 0) {
      CopyUnit(slot);
      if (values_) {
        ++used_;
        --left_;
      }
      values_ = !values_;
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }

  // Moves to the next batch and looks up the one after it; the first call looks up both.
  __device__ __forceinline__ void Switch() {
    do {
      offset_ = OffsetOf(next_offset_, next_block_);
      bounds_ = next_bounds_;
      left_ = next_left_;
      used_ = 0;
      LookUp();
    } while (left_ == 0 && next_left_ > 0);
  }

 private:
  __device__ __forceinline__ uint32_t OffsetOf(uint32_t in_block, int32_t block) const {
    return in_block + static_cast<uint32_t>(block) *
                          static_cast<uint32_t>(a_.num_kv_heads * 2 * a_.block_tokens) *
                          (S::kRowBytes / 16);
  }

  __device__ __forceinline__ void CopyUnit(uint32_t slot) const {
    constexpr int kPer = 16 * S::kRowBytes / 512;  // copies per run
    constexpr int kRows = 512 / S::kRowBytes;      // rows per copy
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t part = static_cast<uint32_t>(a_.block_tokens) * (S::kRowBytes / 16);
#pragma unroll
    for (int g = 0; g < S::kGroups; ++g) {
      const int from_lane = used_ * S::kGroups + g;
      const uint32_t offset = __shfl_sync(~0u, offset_, from_lane) + (values_ ? part : 0);
      const uint32_t bounds = __shfl_sync(~0u, bounds_, from_lane);
      const uint8_t* from = a_.pool + static_cast<uint64_t>(offset) * 16 + lane * 16;
      const uint32_t low = bounds & 0xff;
      const uint32_t high = bounds >> 8;
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        constexpr int kBits = S::kRowBytes == 64 ? 0 : 7;
        const uint32_t target = slot + (g * kPer + i) * 512 +
                                (lane_target_ ^ static_cast<uint32_t>(((i * kRows) & kBits) << 4));
        // Slots that are masked or not written yet become zeros.
        const uint32_t row = i * kRows + lane / (S::kRowBytes / 16);
        const uint32_t bytes = row >= low && row < high ? 16 : 0;
        asm volatile(
            "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(target),
            "l"(from + i * 512), "r"(bytes), "l"(policy_)
            : "memory");
      }
    }
  }

  // Looks up the next tiles, one lane per run of 16 slots, while the previous batch is copied.
  __device__ __forceinline__ void LookUp() {
    next_left_ = 0;
    typename S::Segments segments = segments_;
    if (top_ < segments.at.lo) {
      do {
        if (!segments.Next(a_)) {
          top_ = INT32_MIN;  // below every segment
          return;
        }
        top_ = segments.Top();
      } while (top_ < segments.at.lo);
      __syncwarp();
      segments_ = segments;  // all lanes store the same
      __syncwarp();
    }
    const Segment& at = segments.at;
    next_left_ = min(S::kBatch, (top_ - at.lo) / kWarps + 1);
    const int32_t lane = static_cast<int32_t>(threadIdx.x) % 32;
    const int32_t tile = at.first + max(top_ - kWarps * (lane / S::kGroups), at.lo);
    const int32_t run = tile * S::kGroups + lane % S::kGroups;
    const int32_t low = LowestKey(a_, at.span);
    const int32_t old = OldKeys(at.span);
    const int32_t head = RowsOf<S::kSeveral>(a_, at).head;
    const int32_t there = min(run, old / 16);
    const auto block = static_cast<int32_t>(
        (static_cast<uint64_t>(static_cast<uint32_t>(there)) * a_.runs_inverse) >> 31);
    next_block_ = __ldg(a_.block_tables + at.span.table_begin + block);
    next_offset_ = static_cast<uint32_t>(((2 * head - block) * a_.block_tokens + there * 16) *
                                         (S::kRowBytes / 16));
    const int32_t begin = min(max(low - run * 16, 0), 16);
    const int32_t end = min(max(old - run * 16, 0), 16);
    next_bounds_ = static_cast<uint32_t>(begin | end << 8);
    top_ -= kWarps * next_left_;
  }

  const FusedArgs& a_;
  typename S::Segments& segments_;
  int32_t top_;
  uint64_t policy_ = 0;
  uint32_t lane_target_ = 0;
  int32_t next_block_ = 0, next_left_ = 0;
  uint32_t next_offset_ = 0, next_bounds_ = 0;  // offsets in units of 16 bytes from the pool's
                                                // start
  uint32_t offset_ = 0, bounds_ = 0;
  int32_t left_ = 0, used_ = 0;
  bool values_ = false;
};

}  // namespace aisp::cuda::fused
