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

// How many leading blocks of a sequence may be pushed when the KV of its first `ready_tokens`
// tokens is in the pool and `end_tokens` are wanted: whole blocks, and the last partial one once
// everything is there.
int32_t PushableBlocks(const KvLayout& layout, int32_t ready_tokens, int32_t end_tokens);

}  // namespace aisp
