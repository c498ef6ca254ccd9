// DeviceStage: a host buffer between a GPU pool and a socket: the pieces of one write, contiguous.
// Without a device it does nothing: the pool itself is host memory. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/transport/kv_transport.h"

namespace aisp {

class DeviceStage {
 public:
  // Page-locked memory is scarce; a write is at most one layer of a prompt.
  static constexpr uint64_t kMostBytes = uint64_t{4} << 30;

  explicit DeviceStage(const KvRegion& pool) : pool_(pool) {}

  bool active() const { return pool_.device != nullptr; }

  // Collects the pool offsets of a new write's pieces, in order. Reserve: RESOURCE_EXHAUSTED: no
  // room for so many bytes at once.
  void Clear();
  void Add(uint64_t pool_offset, uint64_t bytes);
  Status Reserve();

  // All pieces, contiguous; bytes() long.
  std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }
  uint64_t bytes() const { return bytes_; }
  // Of the pieces, as in TcpWriteHeader.
  uint64_t Checksum() const;

  // Synchronous copies of all pieces.
  Status FromPool();
  Status ToPool();

 private:
  Status Copy(void* target, const void* source, bool to_pool);

  const KvRegion pool_;
  std::vector<CopyRange> pieces_;  // source: in the pool, target: in the stage
  uint64_t bytes_ = 0;
  Buffer memory_;  // page-locked; grows, never shrinks
  std::unique_ptr<Stream> stream_;
};

}  // namespace aisp
