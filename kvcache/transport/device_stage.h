// DeviceStage: host memory through which the bytes of a pool in a GPU's memory pass on their way to
// or from a socket: the pieces of one write, one after the other. Without a device it does nothing:
// the pool itself is host memory. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache/transport/kv_transport.h"

namespace aisp {

class DeviceStage {
 public:
  // Page-locked memory is scarce; a write is a layer of a prompt at most.
  static constexpr uint64_t kMostBytes = uint64_t{4} << 30;

  explicit DeviceStage(const KvRegion& pool) : pool_(pool) {}

  bool active() const { return pool_.device != nullptr; }

  // A new write of these pieces, given in order: where they lie in the pool. RESOURCE_EXHAUSTED: no
  // room for so many bytes at once.
  void Clear();
  void Add(uint64_t pool_offset, uint64_t bytes);
  Status Reserve();

  // All pieces, one after the other; bytes() of them.
  std::byte* data() const { return static_cast<std::byte*>(memory_.data()); }
  uint64_t bytes() const { return bytes_; }
  // Of the pieces, as TcpWriteHeader has it.
  uint64_t Checksum() const;

  // Done when they return.
  Status FromPool();
  Status ToPool();

 private:
  Status Copy(void* target, const void* source, bool to_pool);

  const KvRegion pool_;
  std::vector<CopyRange> pieces_;  // source: in the pool, target: in the stage
  uint64_t bytes_ = 0;
  Buffer memory_;  // page-locked; grows, is never given back
  std::unique_ptr<Stream> stream_;
};

}  // namespace aisp
