// Who works on what in a step: written once by the plan kernel, read by the attention kernels of every layer.
//
// Decode: the keys of a step are cut into tiles of 32; an item is one {sequence, kv head, chunk of query rows}; the items'
// tiles form one line, of which every CTA takes an equal, contiguous part. An item that spans CTAs leaves partial results, and
// the CTA that arrives last adds them up in the order of the CTAs.
// Prefill: a list of {sequence, query tile}, heaviest first, each for all kv heads; CTAs draw from it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops.h"

namespace aisp::cuda {

inline constexpr int kTileKeys = 32;         // decode
inline constexpr int kPrefillRows = 128;     // query rows of a tile: tokens times the heads that share a KV head
inline constexpr int kPrefillKeys = 128;
inline constexpr int kMaxCtas = 512;

// Where a CTA's part of the line begins, with what it would else have to look up.
struct alignas(16) DecodeStart {
  int32_t seq = 0;
  int32_t item = 0;        // of the sequence
  int32_t tile = 0;        // on the line
  int32_t tiles = 0;       // of the CTA
  RowSpan span;            // of the sequence
  int32_t items = 0;       // of the sequence
  int32_t item_begin = 0;  // of the item, on the line
  int32_t unused[2] = {};
};

// Device memory, at the head of the workspace.
struct PlanHeader {
  int32_t decode_tiles = 0;
  int32_t decode_ctas = 0;    // that have tiles
  int32_t prefill_items = 0;  // {sequence, query tile} pairs
  int32_t prefill_next = 0;   // drawn so far, of this launch
  int32_t prefill_done = 0;   // CTAs that have left
  int32_t unused[3] = {};
  DecodeStart decode_start[kMaxCtas] = {};
  int32_t decode_arrived[kMaxCtas] = {};  // by the item's first CTA
};

struct PlanShape {
  int32_t num_kv_heads = 0;
  int32_t group = 0;           // query heads per KV head
  int32_t window = 0;
  int32_t decode_tokens = 0;   // sequences with more rows are the prefill kernel's
  int32_t chunk_rows = 1;      // query rows of a decode item
  int32_t min_tiles = 1;       // of a decode CTA
  int32_t ctas = 0;
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

__host__ __device__ inline bool IsDecode(const RowSpan& span, int32_t decode_tokens) {
  return span.num_rows > 0 && span.num_rows <= decode_tokens;
}

// The part [begin, end) of the line that CTA `cta` takes is that of LineBegin(cta) and LineBegin(cta + 1).
__host__ __device__ inline int32_t LineBegin(int32_t cta, int32_t tiles, int32_t ctas) {
  return static_cast<int32_t>(static_cast<int64_t>(cta) * tiles / ctas);
}
__host__ __device__ inline int32_t CtaOfTile(int32_t tile, int32_t tiles, int32_t ctas) {
  return static_cast<int32_t>((static_cast<int64_t>(tile + 1) * ctas - 1) / tiles);
}

// `prefix` [num_sequences + 1], `prefill_items` as many as the capacity of the workspace.
cudaError_t LaunchPlan(const PlanShape& shape, const RowSpan* sequences, int32_t num_sequences,
                       bool decode, bool prefill, PlanHeader* header, int32_t* prefix,
                       int2* prefill_items, cudaStream_t stream);

}  // namespace aisp::cuda
