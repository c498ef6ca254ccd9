// What a prefix index changed, for the cluster-wide view (worker.proto, KvEventBatch). Pure values.
#pragma once

#include <cstdint>
#include <vector>

#include "common/hash.h"

namespace aisp {

struct KvCacheEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };
  Kind kind = Kind::kStored;
  // Of every unit (16 tokens) of the blocks concerned. A unit is removed when no published block
  // has it any more. The hashes of one event may belong to several blocks; in a kStored one every
  // unit stands after the unit before it in its chain.
  std::vector<Hash128> unit_hashes;
};

}  // namespace aisp
