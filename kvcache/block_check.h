// Checksums of blocks sent between pools (kv.verify): one number for a block's bytes in all layers.
// The writer computes it from its pool once all is written (for cached blocks, while they are
// cached), the reader from its own before reading. It detects faults of transports, drivers and
// memory; it does not defend against a dishonest writer.
//
// Both pools are in host memory and have the same shape. Pure functions: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/layout.h"

namespace aisp {

// Checksum of one layer of a block. A block's checksum is the XOR over its layers, in any order.
uint64_t LayerBlockCheck(const KvLayout& layout, const std::byte* pool, int32_t layer,
                         BlockId block);
uint64_t BlockCheck(const KvLayout& layout, const std::byte* pool, BlockId block);

}  // namespace aisp
