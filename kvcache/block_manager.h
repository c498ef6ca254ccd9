// BlockManager: who owns which block of one pool.
//
// Knows no request: only tokens, block ids and pins. A block is in exactly one of these states:
//   free        no pin, content meaningless
//   cached      no pin, content published in the prefix index; evictable, least recently used first
//   pinned      >= 1 pin: held by a sequence, by a step in flight, by a reservation, or by a remote writer's lease
//   quarantined pinned only by a lease whose grant was given up before the writer acknowledged (see below)
// Preempting and cancelling only drop pins. Blocks pinned by nobody that are published stay cached.
//
// Quarantine: nobody can revoke another process's mapping. A block granted to a remote writer keeps its lease pin until
// the writer acknowledged the epoch or is proven dead (EndLease); the sequence that wanted it may be long gone.
//
// Owned by one engine thread; not thread-safe; never blocks; allocates no memory per call beyond the returned vectors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "kvcache/layout.h"
#include "common/prefix_hash.h"

namespace aisp {

enum class PinKind : uint8_t { kSequence, kStep, kReservation, kLease };

class BlockManager;

// Blocks taken from the free list (or evicted from the cache) and pinned with kReservation. Move-only: the destructor gives
// back what was not taken out.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

  std::span<const BlockId> blocks() const { return blocks_; }
  // Turns the reservation's pins into pins of `kind`; the caller now owns those pins.
  std::vector<BlockId> Take(PinKind kind);

 private:
  friend class BlockManager;
  Reservation(BlockManager* manager, std::vector<BlockId> blocks);
  BlockManager* manager_ = nullptr;
  std::vector<BlockId> blocks_;
};

// What the prefix index changed, in order, for the cluster-wide view (worker.proto KvEventBatch).
struct KvCacheEvent {
  enum class Kind : uint8_t { kStored, kRemoved, kCleared };
  Kind kind = Kind::kStored;
  std::vector<Hash128> unit_hashes;
};

struct BlockStats {
  int32_t total = 0;
  int32_t free = 0;
  int32_t cached = 0;       // evictable
  int32_t pinned = 0;       // by anything, quarantined ones included
  int32_t quarantined = 0;  // lease pin only
  uint64_t queries_tokens = 0;
  uint64_t hits_tokens = 0;
  uint64_t evictions = 0;
};

class BlockManager {
 public:
  struct Options {
    KvLayout layout;
    bool enable_prefix_cache = true;
    int32_t max_pending_events = 65536;  // beyond it pending events collapse into kCleared plus a snapshot
  };
  explicit BlockManager(const Options& options);
  ~BlockManager();
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;

  const KvLayout& layout() const;

  // Blocks that a Reserve could return now: free + cached.
  int32_t Available() const;

  // n blocks or RESOURCE_EXHAUSTED (says how many there are); n >= 0. Evicts cached blocks, least recently used and
  // deepest in its chain first.
  Result<Reservation> Reserve(int32_t n);

  // Longest run of cached whole blocks that hold exactly tokens[0, k * block_tokens) under `root`, at most `max_tokens`
  // tokens; each is pinned with kSequence for the caller (release with Unpin). Compares tokens, never hashes alone.
  std::vector<BlockId> MatchAndPin(const Hash128& root, std::span<const TokenId> tokens, int32_t max_tokens);
  // The same length in tokens without pinning, without counting as a query and without touching the LRU order.
  int32_t MatchLength(const Hash128& root, std::span<const TokenId> tokens, int32_t max_tokens) const;

  // Publishes whole blocks: blocks[i] holds tokens[i*block_tokens, (i+1)*block_tokens); `tokens` starts at position 0.
  // blocks[0, already_published) were published before. When equal content is already published under another block, that
  // one stays published and this one stays private to its pins.
  void Publish(const Hash128& root, std::span<const TokenId> tokens, std::span<const BlockId> blocks,
               int32_t already_published);

  void Pin(std::span<const BlockId> blocks, PinKind kind);
  void Unpin(std::span<const BlockId> blocks, PinKind kind);

  // Lease pins are counted per epoch so that the bound on a silent writer can be checked.
  void BeginLease(Epoch epoch, std::span<const BlockId> blocks);
  void EndLease(Epoch epoch);  // acknowledged or proven dead; unknown epochs are ignored (a late second ack)
  int32_t LeasedBlocks() const;

  // Forgets every cached block (not the pinned ones' content) and reports kCleared.
  void ClearCache();

  // Events since the last call, oldest first, and the sequence number of the first of them (counts from 0).
  std::vector<KvCacheEvent> TakeEvents(uint64_t* first_sequence);
  // The whole content of the index as kStored events; the next event after it has sequence number *next_sequence.
  std::vector<KvCacheEvent> SnapshotEvents(uint64_t* next_sequence) const;

  BlockStats Stats() const;
  // Walks everything and aborts on a violated invariant (a block in two states, a negative pin, a lost block). Tests and
  // the simulation call it after every step.
  void CheckInvariants() const;

 private:
  friend class Reservation;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
