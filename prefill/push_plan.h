// Plans the copies for pushing blocks of one layer. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/layout.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

// Copies of layer `layer` from `src` blocks to the corresponding `dst` blocks (equal lengths), in
// order; blocks adjacent in both pools become one copy.
std::vector<BlockCopy> PlanLayerCopies(const KvLayout& src_layout, const KvLayout& dst_layout,
                                       int32_t layer, std::span<const BlockId> src,
                                       std::span<const BlockId> dst);

// Copies of the tokens [begin, end) of layer `layer` between pools with different block sizes, in
// runs that are contiguous in both. `src`: the sequence's blocks from token 0 on; `dst`: from token
// `dst_first` on, a block boundary of the reader.
std::vector<BlockCopy> PlanRowCopies(const KvLayout& src_layout, const KvLayout& dst_layout,
                                     int32_t layer, int32_t begin, int32_t end,
                                     std::span<const BlockId> src, std::span<const BlockId> dst,
                                     int32_t dst_first);

// Number of leading blocks that may be pushed when the first `ready_tokens` tokens have KV and
// `end_tokens` are wanted: whole blocks, plus the last partial one once all is ready.
int32_t PushableBlocks(const KvLayout& layout, int32_t ready_tokens, int32_t end_tokens);

}  // namespace aisp
