// Changes of a prefix index, for the cluster-wide view (worker.proto, KvEventBatch). Pure values.
#pragma once

#include <cstdint>
#include <vector>

#include "common/hash.h"

namespace aisp {

struct KvCacheEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };
  Kind kind = Kind::kStored;
  // Hashes of every unit (16 tokens) of the blocks concerned. A unit is removed when no published
  // block contains it any more. One event may cover several blocks; in a kStored event every unit
  // follows its predecessor in the chain.
  std::vector<Hash128> unit_hashes;
};

}  // namespace aisp
