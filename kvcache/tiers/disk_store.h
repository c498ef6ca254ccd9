// DiskStore: blocks in slots of one file. A slot is a 4 KiB header and the block's bytes, padded to
// 4 KiB. Both carry a hash, so that torn writes, flipped bits and slots of another model are
// detected when read, and writes need no ordering.
//
// Header (little-endian, sizes in bytes): magic 8, version u32, position u32, fingerprint 16, key
// 16, parent 16, payload bytes u64, sequence u64, hash of the payload 16, units 8 x 16, hash of all
// of this 16.
//
// No policy: TierIndex decides which slot holds what. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/hash.h"
#include "common/result.h"
#include "kvcache/tiers/block_file.h"
#include "kvcache/tiers/tier_io.h"

namespace aisp {

class DiskStore {
 public:
  struct Shape {
    // What must be equal for a block to be usable: weights, arithmetic, KV layout.
    Hash128 fingerprint;
    size_t payload_bytes = 0;
    int32_t position_limit = 0;  // upper bound of a block's first position
  };
  static constexpr size_t kHeaderBytes = BlockFile::kAlignment;

  static size_t SlotBytes(size_t payload_bytes) {
    return (kHeaderBytes + payload_bytes + BlockFile::kAlignment - 1) / BlockFile::kAlignment *
           BlockFile::kAlignment;
  }

  DiskStore(const Shape& shape, std::unique_ptr<BlockFile> file, int32_t slots);

  int32_t slots() const { return slots_; }
  size_t slot_bytes() const { return slot_bytes_; }

  // The blocks with valid headers, oldest first; of two with one key, the newer. `scratch`:
  // kHeaderBytes, aligned. Unreadable slots are skipped.
  std::vector<TierEntry> Scan(std::span<std::byte> scratch);

  // `slot_buffer`: slot_bytes, aligned; the payload is at kHeaderBytes, the header is filled in.
  Status Write(const TierEntry& entry, std::span<std::byte> slot_buffer);
  // Fills the buffer. DATA_LOSS: not the block `key` as it was written.
  Status Read(int32_t slot, const Hash128& key, std::span<std::byte> slot_buffer);

 private:
  struct Header;
  // Whether it is one of ours and undamaged.
  bool Good(const Header& header) const;
  Status ReadAll(uint64_t offset, std::span<std::byte> into);

  const Shape shape_;
  const size_t slot_bytes_;
  const std::unique_ptr<BlockFile> file_;
  const int32_t slots_;
  uint64_t next_sequence_ = 1;
};

}  // namespace aisp
