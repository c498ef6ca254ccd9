// EpochGate: which pool ranges writers of which epoch may write, for transports whose owner copies.
//
// Not thread-safe: the user holds one lock around Check and the copy that follows, so that after a
// Revoke under the same lock nothing of the epoch lands.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

class EpochGate {
 public:
  // Uses dst_offset and bytes of `allowed`; further calls add ranges.
  void Allow(Epoch epoch, std::span<const BlockCopy> allowed);
  void Revoke(Epoch epoch) { ranges_.erase(epoch); }

  // FAILED_PRECONDITION: the epoch was revoked or never granted. OUT_OF_RANGE: these bytes were
  // not.
  Status Check(Epoch epoch, uint64_t offset, uint64_t bytes) const;
  bool Knows(Epoch epoch) const { return ranges_.contains(epoch); }

 private:
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // Sorted and disjoint; adjacent ranges are merged.
  std::unordered_map<Epoch, std::vector<Range>> ranges_;
};

}  // namespace aisp
