// The work distribution of a step: written once by the plan kernel, read by every layer's attention
// kernels.
//
// Decode: keys are cut into tiles of 32. An item is one {sequence, KV head, chunk of query rows}.
// The tiles of all items, concatenated, are cut into ranges: first a long one for every CTA, then
// shorter ones that CTAs draw when they are done, since multiprocessors reach memory at different
// speeds. Items that span ranges are stored in parts, which a second kernel adds in order, so the
// assignment of ranges does not affect the result. Prefill: a list of {sequence, query tile (or
// pair of tiles)}, heaviest first, each for all KV heads; CTAs (or clusters of two) take entries in
// turn.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/params.h"

namespace aisp::cuda {

inline constexpr int kTileKeys = 32;  // decode
inline constexpr int kPrefillRows =
    128;  // query rows per tile: tokens times heads that share a KV head
inline constexpr int kPrefillKeys = 128;
inline constexpr int kMaxCtas = 256;
inline constexpr int kMaxRanges = 7 * kMaxCtas;

// Where a CTA's range of tiles begins, with everything it would have to look up.
struct alignas(16) DecodeStart {
  int32_t seq = 0;
  int32_t item = 0;        // of the sequence
  int32_t tile = 0;        // among all tiles
  int32_t tiles = 0;       // number of the CTA's tiles
  RowSpan span;            // of the sequence
  int32_t items = 0;       // of the sequence
  int32_t item_begin = 0;  // position of the item among all tiles
  int32_t unused[2] = {};
};

// An item in parts, from range `first` (where it begins) to range `last`.
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
  int32_t tile_begin[4] = {};  // start of each stretch, and the end
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
  // The range that contains a tile.
  __host__ __device__ int32_t RangeOf(int32_t tile) const {
    const int i = tile < tile_begin[1] ? 0 : tile < tile_begin[2] ? 1 : 2;
    return range_begin[i] + static_cast<int32_t>((static_cast<int64_t>(tile - tile_begin[i] + 1) *
                                                      (range_begin[i + 1] - range_begin[i]) -
                                                  1) /
                                                 (tile_begin[i + 1] - tile_begin[i]));
  }
};

// Device memory, at the start of the workspace.
struct PlanHeader {
  RangeLayout layout;
  int32_t decode_next = 0;    // ranges drawn in this launch
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
  int32_t prefill_cluster = 1;  // query tiles per prefill item
  int32_t decode_least = 1;     // rows per sequence for the decode kernel: minimum,
  int32_t decode_tokens = 0;    // maximum
  int32_t prefill_beyond = 0;   // sequences with more rows go to the prefill kernel
  int32_t chunk_rows = 1;       // query rows per decode item
  int32_t min_tiles = 1;        // per decode CTA, if there are fewer items than CTAs
  int32_t ctas = 0;             // of the decode kernel
  int32_t max_stretches = 1;    // for which the workspace has room
};

// The tiles of one decode item, and its first one's index.
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

// False for padding sequences, which have no rows.
__host__ __device__ inline bool IsDecode(const RowSpan& span, int32_t least, int32_t most) {
  return span.num_rows >= least && span.num_rows <= most;
}

// `prefill_items`: the capacity of the workspace.
cudaError_t LaunchPlan(const PlanShape& shape, const RowSpan* sequences, int32_t num_sequences,
                       bool decode, bool prefill, PlanHeader* header, int2* prefill_items,
                       cudaStream_t stream);

}  // namespace aisp::cuda
