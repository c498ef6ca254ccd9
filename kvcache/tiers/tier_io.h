// TierIo: moves the bytes of blocks between the device pool, host memory and the disk, elsewhere
// than on the engine thread. KvTiers decides what moves and keeps whatever is being read or written
// from being given away; an implementation only copies. TierThreads is the real one; the simulation
// has another.
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

// The hashes of a block's units of 16 tokens, by which routers know it; zero behind its last one,
// and all of them where they are not known.
using BlockUnits = std::array<Hash128, PrefixIndex::kMaxBlockTokens / kHashUnitTokens>;

enum class TierPlace : uint8_t { kPool, kHost, kDisk };

struct TierSpot {
  TierPlace place = TierPlace::kPool;
  int32_t index = 0;  // block of the pool, slot of a tier
};

struct TierJob {
  uint64_t id = 0;
  TierSpot from;
  TierSpot to;
  // What the block is, for the disk's headers.
  Hash128 key;
  Hash128 parent;
  int32_t position = 0;  // of its first token
  BlockUnits units{};
};

struct TierDone {
  uint64_t id = 0;
  // DATA_LOSS: what was read is not what was written; anything else: it could not be read or
  // written.
  Status status;
  Duration took{};  // of the copy alone
};

// What a disk holds at start.
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
  // Never waits; false: it has too much to do, nothing happens. Jobs into the pool go before
  // others.
  virtual bool Submit(const TierJob& job) = 0;
  // Appends what has ended since the last call, in any order; every submitted job ends once.
  virtual void TakeDone(std::vector<TierDone>* done) = 0;
};

}  // namespace aisp
