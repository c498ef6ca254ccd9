// ConversionStaging: memory in which KV of another number format is made before it is written to a
// reader's pool.
//
// Transports write from the pool, so it is blocks of the pool: taken when the first push that
// converts opens, before its prompt has blocks, and given back with the last one. So a push never
// waits for blocks that prompts hold, and a sequence may have the whole pool when nothing is
// converted. Each layer of such a block is one slot. Owned by the engine thread.
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
  // `pool`: the pool in host memory; null where the host cannot write it.
  ConversionStaging(BlockManager* blocks, std::byte* pool) : blocks_(blocks), pool_(pool) {}

  // FAILED_PRECONDITION: the host cannot reach this pool, or it is too small.
  Status Check(const KvConversion& conversion) const;
  // One push more whose KV is converted, of a prompt of so many blocks. Errors as Check;
  // RESOURCE_EXHAUSTED: the pool is full, or has no room for the prompt beside this.
  Status Open(const KvConversion& conversion, int32_t prompt_blocks);
  // One push less. Nothing of it is in use any more.
  void Close();

  const std::byte* pool() const { return pool_; }
  int32_t blocks() const { return static_cast<int32_t>(reserved_.size()); }
  int32_t most_blocks() const { return most_blocks_; }  // so far
  int32_t slots() const { return blocks() * blocks_->layout().num_layers; }
  // That one layer of one of the reader's blocks takes.
  int32_t SlotsFor(const KvLayout& to) const;

  // `n` slots, as offsets in the pool; empty while there are fewer.
  std::vector<uint64_t> Take(int32_t n);
  void GiveBack(std::span<const uint64_t> slots);
  // Copies what is to be written of one layer of one block into `slots` and says how it is written
  // to `dst_offset`.
  void Fill(std::span<const uint64_t> slots, std::span<const std::byte> made, uint64_t dst_offset,
            std::vector<BlockCopy>* copies);

 private:
  // Without which nothing can be converted.
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
