// ConversionStaging: memory in which KV of another number format is made before it is written to a
// reader's pool.
//
// Transports write from the pool, so it is blocks of the pool: taken when the first reader with
// another format connects and given back with the last one, never while something waits for them.
// So what is granted to it can never keep a prompt from ending. Each layer of such a block is one
// slot. Owned by the engine thread.
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

  // One reader more whose KV is to be converted. FAILED_PRECONDITION: the host cannot reach this
  // pool, or it is too small; RESOURCE_EXHAUSTED: it is full, another time.
  Status Open(const KvConversion& conversion);
  // One reader less. Nothing of it is in use any more.
  void Close();

  const std::byte* pool() const { return pool_; }
  int32_t blocks() const { return static_cast<int32_t>(reserved_.size()); }
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
  BlockManager* const blocks_;
  std::byte* const pool_;
  int readers_ = 0;
  std::vector<Reservation> reservations_;
  std::vector<BlockId> reserved_;
  std::vector<uint64_t> free_;
};

}  // namespace aisp
