// Which bytes go where when blocks of one layer are pushed. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kvcache/layout.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

// Copies of layer `layer` from `src` blocks to the `dst` blocks beside them (equal lengths), in
// order; neighbours that are adjacent in both pools become one copy.
std::vector<BlockCopy> PlanLayerCopies(const KvLayout& src_layout, const KvLayout& dst_layout,
                                       int32_t layer, std::span<const BlockId> src,
                                       std::span<const BlockId> dst);

// Copies of the tokens [begin, end) of layer `layer` between pools whose blocks hold different
// numbers of tokens, row by row of what lies together in both. `src`: the sequence's blocks from
// token 0 on; `dst`: from token `dst_first` on, a boundary of the reader's blocks.
std::vector<BlockCopy> PlanRowCopies(const KvLayout& src_layout, const KvLayout& dst_layout,
                                     int32_t layer, int32_t begin, int32_t end,
                                     std::span<const BlockId> src, std::span<const BlockId> dst,
                                     int32_t dst_first);

// How many leading blocks of a sequence may be pushed when the KV of its first `ready_tokens`
// tokens is in the pool and `end_tokens` are wanted: whole blocks, and the last partial one once
// everything is there.
int32_t PushableBlocks(const KvLayout& layout, int32_t ready_tokens, int32_t end_tokens);

}  // namespace aisp
