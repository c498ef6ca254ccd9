// Who works on what in a step: written once by the plan kernel, read by the attention kernels of
// every layer.
//
// Decode: the keys of a step are cut into tiles of 32; an item is one {sequence, kv head, chunk of
// query rows}; the tiles of all items, one after the other, are cut into ranges: first a long one
// for every CTA, then ever shorter ones that CTAs draw when they are done, since multiprocessors
// differ in how fast they reach the memory. An item that spans ranges is left in parts, which a
// second kernel adds up in their order: who worked on what does not change a bit of the result.
// Prefill: a list of {sequence, query tile (or pair of them)}, heaviest first, each for all kv
// heads; CTAs (or clusters of two) take from it in turns.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/params.h"

namespace aisp::cuda {

inline constexpr int kTileKeys = 32;  // decode
inline constexpr int kPrefillRows =
    128;  // query rows of a tile: tokens times the heads that share a KV head
inline constexpr int kPrefillKeys = 128;
inline constexpr int kMaxCtas = 256;
inline constexpr int kMaxRanges = 7 * kMaxCtas;

// Where a CTA's part of the tiles begins, with what it would else have to look up.
struct alignas(16) DecodeStart {
  int32_t seq = 0;
  int32_t item = 0;        // of the sequence
  int32_t tile = 0;        // among all
  int32_t tiles = 0;       // of the CTA
  RowSpan span;            // of the sequence
  int32_t items = 0;       // of the sequence
  int32_t item_begin = 0;  // of the item, among all
  int32_t unused[2] = {};
};

// An item in parts: that of range `first` (where it begins) to that of range `last`.
struct alignas(16) CutItem {
  RowSpan span;
  int32_t item = 0;  // of the sequence
  int32_t first = 0;
  int32_t last = 0;
  int32_t unused = 0;
};

// How the tiles are cut: up to three stretches, each into ranges of equal length.
struct RangeLayout {
  int32_t tiles = 0;
  int32_t ranges = 0;
  int32_t tile_begin[4] = {};  // of each stretch, and the end
  int32_t range_begin[4] = {};

  __host__ __device__ void Cut(int32_t all_tiles, int32_t ctas, int32_t stretches) {
    tiles = all_tiles;
    const int64_t t = all_tiles;
    const int32_t ends[3] = {static_cast<int32_t>(stretches == 1   ? t
                                                  : stretches == 2 ? t * 4 / 5
                                                                   : t * 3 / 4),
                             static_cast<int32_t>(stretches == 3 ? t * 9 / 10 : t), all_tiles};
    for (int i = 0; i < 3; ++i) {
      tile_begin[i + 1] = ends[i];
      range_begin[i + 1] = range_begin[i] + (i < stretches ? ctas << i : 0);
    }
    ranges = range_begin[3];
  }
  __host__ __device__ int32_t Begin(int32_t range) const {
    const int i = range < range_begin[1] ? 0 : range < range_begin[2] ? 1 : 2;
    if (range >= ranges) return tiles;
    return tile_begin[i] + static_cast<int32_t>(static_cast<int64_t>(range - range_begin[i]) *
                                                (tile_begin[i + 1] - tile_begin[i]) /
                                                (range_begin[i + 1] - range_begin[i]));
  }
  // The range that a tile is in.
  __host__ __device__ int32_t RangeOf(int32_t tile) const {
    const int i = tile < tile_begin[1] ? 0 : tile < tile_begin[2] ? 1 : 2;
    return range_begin[i] + static_cast<int32_t>((static_cast<int64_t>(tile - tile_begin[i] + 1) *
                                                      (range_begin[i + 1] - range_begin[i]) -
                                                  1) /
                                                 (tile_begin[i + 1] - tile_begin[i]));
  }
};

// Device memory, at the head of the workspace.
struct PlanHeader {
  RangeLayout layout;
  int32_t decode_next = 0;    // ranges drawn so far, of this launch
  int32_t prefill_items = 0;  // {sequence, query tile} pairs
  int32_t cut_items = 0;
  int32_t unused[3] = {};
  DecodeStart decode_start[kMaxRanges] = {};
  CutItem cut[kMaxRanges] = {};
};

struct PlanShape {
  int32_t num_kv_heads = 0;
  int32_t group = 0;  // query heads per KV head
  int32_t window = 0;
  int32_t prefill_cluster = 1;  // query tiles of a prefill item
  int32_t decode_least = 1;     // sequences of so many rows are the decode kernel's: from,
  int32_t decode_tokens = 0;    // to
  int32_t prefill_beyond = 0;   // sequences with more rows are the prefill kernel's
  int32_t chunk_rows = 1;       // query rows of a decode item
  int32_t min_tiles = 1;        // of a decode CTA, if there are fewer items than CTAs
  int32_t ctas = 0;             // of the decode kernel
  int32_t max_stretches = 1;    // that the workspace has room for
};

// Tiles of one decode item and the index of its first.
struct TileRange {
  int32_t first = 0;
  int32_t count = 0;
};

__host__ __device__ inline TileRange DecodeTiles(const RowSpan& span, int32_t window) {
  int32_t low = window > 0 ? span.context_len - span.num_rows - window + 1 : 0;
  TileRange range;
  range.first = low > 0 ? low / kTileKeys : 0;
  range.count = (span.context_len + kTileKeys - 1) / kTileKeys - range.first;
  return range;
}

// Padding sequences have no rows.
__host__ __device__ inline bool IsDecode(const RowSpan& span, int32_t least, int32_t most) {
  return span.num_rows >= least && span.num_rows <= most;
}

// `prefill_items` as many as the capacity of the workspace.
cudaError_t LaunchPlan(const PlanShape& shape, const RowSpan* sequences, int32_t num_sequences,
                       bool decode, bool prefill, PlanHeader* header, int2* prefill_items,
                       cudaStream_t stream);

}  // namespace aisp::cuda
