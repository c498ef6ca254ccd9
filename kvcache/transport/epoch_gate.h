// EpochGate: which ranges of a pool writers of which epoch may write, for transports whose owner
// side copies.
//
// Not thread-safe: its user holds one lock around Check and the copy that follows, so that a Revoke
// under the same lock means that nothing of the epoch lands any more.
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
  // dst_offset and bytes of `allowed` count; a second call adds to the first.
  void Allow(Epoch epoch, std::span<const BlockCopy> allowed);
  void Revoke(Epoch epoch) { ranges_.erase(epoch); }

  // FAILED_PRECONDITION: the epoch was revoked or never granted. OUT_OF_RANGE: not these bytes.
  Status Check(Epoch epoch, uint64_t offset, uint64_t bytes) const;
  bool Knows(Epoch epoch) const { return ranges_.contains(epoch); }

 private:
  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // Sorted, disjoint, neighbours merged.
  std::unordered_map<Epoch, std::vector<Range>> ranges_;
};

}  // namespace aisp
