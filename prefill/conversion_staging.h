// ConversionStaging: memory for KV that is converted to another number format before it is written
// to a reader's pool.
//
// Transports write from the pool, so the staging memory consists of blocks of the pool. They are
// taken when the first converting push opens, before its prompt has blocks, and returned with the
// last one. So a push never waits for blocks that prompts hold, and without conversion the whole
// pool is available. Each layer of such a block is one slot. Owned by the engine thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"
#include "kvcache/block_manager.h"
#include "kvcache/kv_conversion.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

class ConversionStaging {
 public:
  // `pool`: the pool in host memory; null if the host cannot write it.
  ConversionStaging(BlockManager* blocks, std::byte* pool) : blocks_(blocks), pool_(pool) {}

  // FAILED_PRECONDITION: the host cannot access this pool, or it is too small.
  Status Check(const KvConversion& conversion) const;
  // Registers a push with conversion, of a prompt of `prompt_blocks` blocks. Errors as in Check;
  // RESOURCE_EXHAUSTED: the pool has no room, also for the prompt.
  Status Open(const KvConversion& conversion, int32_t prompt_blocks);
  // Ends a push that uses no slots any more.
  void Close();

  const std::byte* pool() const { return pool_; }
  int32_t blocks() const { return static_cast<int32_t>(reserved_.size()); }
  int32_t most_blocks() const { return most_blocks_; }  // maximum so far
  int32_t slots() const { return blocks() * blocks_->layout().num_layers; }
  // Slots for one layer of one of the reader's blocks.
  int32_t SlotsFor(const KvLayout& to) const;

  // `n` slots as offsets in the pool; empty when there are fewer.
  std::vector<uint64_t> Take(int32_t n);
  void GiveBack(std::span<const uint64_t> slots);
  // Copies one converted layer of one block into `slots`, and appends the copies that write it to
  // `dst_offset`.
  void Fill(std::span<const uint64_t> slots, std::span<const std::byte> made, uint64_t dst_offset,
            std::vector<BlockCopy>* copies);

 private:
  // The minimum needed to convert anything.
  int32_t LeastBlocks(const KvConversion& conversion) const;

  BlockManager* const blocks_;
  std::byte* const pool_;
  int pushes_ = 0;
  int32_t most_blocks_ = 0;
  std::vector<Reservation> reservations_;
  std::vector<BlockId> reserved_;
  std::vector<uint64_t> free_;
};

}  // namespace aisp
