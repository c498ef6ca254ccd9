// Checks of blocks that travel between pools (kv.verify): one number for the bytes of a block in
// all layers, which the writer takes from its pool when all is written (of what is cached, while it
// is) and the reader from its own before it reads. It finds what a lane, a driver or memory did to
// them; it is no defence against a writer that lies.
//
// Both pools lie in host memory and have the same shape. Pure functions: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kvcache/layout.h"

namespace aisp {

// Of one layer. The check of a block is the XOR of those of all its layers, in any order.
uint64_t LayerBlockCheck(const KvLayout& layout, const std::byte* pool, int32_t layer,
                         BlockId block);
uint64_t BlockCheck(const KvLayout& layout, const std::byte* pool, BlockId block);

}  // namespace aisp
