// TierIo: copies blocks between the device pool, host memory and disk, off the engine thread.
// KvTiers decides what moves and protects blocks being read or written from eviction; an
// implementation only copies. TierThreads is the real one; the simulation has another.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/clock.h"
#include "common/hash.h"
#include "common/prefix_hash.h"
#include "common/result.h"
#include "kvcache/prefix_index.h"

namespace aisp {

// Hashes of a block's units of 16 tokens, as routers know them; zero after the last unit, and all
// zero if unknown.
using BlockUnits = std::array<Hash128, PrefixIndex::kMaxBlockTokens / kHashUnitTokens>;

enum class TierPlace : uint8_t { kPool, kHost, kDisk };

struct TierSpot {
  TierPlace place = TierPlace::kPool;
  int32_t index = 0;  // block of the pool, or slot of a tier
};

struct TierJob {
  uint64_t id = 0;
  TierSpot from;
  TierSpot to;
  // The block's identity, for disk headers.
  Hash128 key;
  Hash128 parent;
  int32_t position = 0;  // of its first token
  BlockUnits units{};
};

struct TierDone {
  uint64_t id = 0;
  // DATA_LOSS: the content read differs from what was written; else: a read or write error.
  Status status;
  Duration took{};  // of the copy alone
};

// A block found on disk at start.
struct TierEntry {
  int32_t slot = 0;
  Hash128 key;
  Hash128 parent;
  int32_t position = 0;
  BlockUnits units{};
};

class TierIo {
 public:
  virtual ~TierIo() = default;
  // Never waits. False: queue full, nothing happens. Jobs into the pool have priority.
  virtual bool Submit(const TierJob& job) = 0;
  // Appends jobs completed since the last call, in any order; every submitted job completes once.
  virtual void TakeDone(std::vector<TierDone>* done) = 0;
};

}  // namespace aisp
