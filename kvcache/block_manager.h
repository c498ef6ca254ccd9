// BlockManager: who owns which block of one pool.
//
// Knows no request: only tokens, block ids and pins. A block is in exactly one of these states:
//   free        no pin, content meaningless
//   cached      no pin, content published in the prefix index; evictable, least recently used first
//   pinned      >= 1 pin: held by a sequence, by a step in flight, by a reservation, by a copy to
//               or from another tier or worker, or by a remote writer's lease; or no pin itself,
//               but a published descendant in its chain has one and would become unreachable
//               without it
//   quarantined pinned only by a lease whose grant was given up before the writer acknowledged (see
//   below)
// Preempting and cancelling only drop pins. Blocks pinned by nobody that are published stay cached.
//
// Quarantine: nobody can revoke another process's mapping. A block granted to a remote writer keeps
// its lease pin until the writer acknowledged the epoch or is proven dead (EndLease); the sequence
// that wanted it may be long gone.
//
// Costs: Reserve, Pin, Unpin and evictions are O(1) a block; matching and publishing O(blocks
// walked); a partial match looks at a bounded number of blocks.
//
// Owned by one engine thread; not thread-safe; never blocks; allocates no memory per call beyond
// the returned vectors, pending events and the record of a lease. Misuse (unpinning more than was
// pinned, an epoch granted twice) is a failed check.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "kvcache/kv_cache_event.h"
#include "kvcache/layout.h"
#include "kvcache/pin_kind.h"
#include "kvcache/prefix_index.h"

namespace aisp {

class BlockManager;

// Blocks taken from the free list (or evicted from the cache) and pinned with kReservation.
// Move-only: the destructor gives back what was not taken out.
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

struct BlockStats {
  int32_t total = 0;
  int32_t free = 0;
  int32_t cached = 0;           // evictable
  int32_t pinned = 0;           // by anything, quarantined ones included
  int32_t quarantined = 0;      // lease pin only
  uint64_t queries_tokens = 0;  // as told by CountLookup
  uint64_t hits_tokens = 0;
  uint64_t evictions = 0;
};

// A published block that follows a match and begins with the same tokens as the prompt there.
struct PartialMatch {
  BlockId block{-1};
  int32_t tokens = 0;  // that it shares with them from its first on; 0: there is none
};

class BlockManager {
 public:
  struct Options {
    KvLayout layout;
    bool enable_prefix_cache = true;
    // Beyond it pending events are dropped and TakeEvents shows a gap in the sequence: the reader
    // asks for a snapshot.
    int32_t max_pending_events = 65536;
    UnitHashFunction unit_hash = &HashChain;  // a weak one in tests of collisions
  };
  explicit BlockManager(const Options& options);
  ~BlockManager();
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;

  const KvLayout& layout() const;

  // Blocks that a Reserve could return now: free + cached.
  int32_t Available() const;

  // n blocks or RESOURCE_EXHAUSTED (says how many there are); n >= 0. Evicts cached blocks, least
  // recently used and deepest in its chain first.
  Result<Reservation> Reserve(int32_t n);

  // Longest run of cached whole blocks that hold exactly tokens[0, k * block_tokens) under `root`,
  // at most `max_tokens` tokens; each is pinned with kSequence for the caller (release with Unpin).
  // Compares tokens, never hashes alone. `*partial`: what follows the run and shares most with the
  // tokens behind it, those beyond `max_tokens` too; not pinned. PrefixIndex::NearestAfter.
  std::vector<BlockId> MatchAndPin(const Hash128& root, std::span<const TokenId> tokens,
                                   int32_t max_tokens, PartialMatch* partial = nullptr);
  // For the statistics: a sequence of which `looked_up` tokens could have been found in the cache
  // started with `found` of them. Told once for a sequence, however often it was matched before.
  void CountLookup(int32_t looked_up, int32_t found);
  // The length of the match in tokens, without pinning and without touching the LRU order.
  // `*evictable_blocks` is how many of the matched blocks are evictable: pinning the match lowers
  // Available() by as many. `*partial` as MatchAndPin.
  int32_t MatchLength(const Hash128& root, std::span<const TokenId> tokens, int32_t max_tokens,
                      int32_t* evictable_blocks = nullptr, PartialMatch* partial = nullptr) const;

  // Publishes whole blocks: blocks[i] holds tokens[i*block_tokens, (i+1)*block_tokens); `tokens`
  // starts at position 0. blocks[0, already_published) were given to Publish before; all of them
  // are pinned by the caller. When equal content is already published under another block, that one
  // stays published and this one stays private to its pins.
  void Publish(const Hash128& root, std::span<const TokenId> tokens,
               std::span<const BlockId> blocks, int32_t already_published);

  void Pin(std::span<const BlockId> blocks, PinKind kind);
  void Unpin(std::span<const BlockId> blocks, PinKind kind);

  // One lease pin for each block, until the epoch ends. `blocks` are pinned by the caller; an epoch
  // is never reused.
  void BeginLease(Epoch epoch, std::span<const BlockId> blocks);
  void EndLease(
      Epoch epoch);  // acknowledged or proven dead; unknown epochs are ignored (a late second ack)
  int32_t LeasedBlocks()
      const;  // lease pins of all open epochs: what silent writers can hold back at most

  // Forgets the published prefix of a sequence with these `blocks`, and whatever is published
  // behind any block of it: cached blocks become free, pinned ones stay with their pins and are no
  // longer found. Those that were forgotten; O(blocks of the pool).
  std::vector<BlockId> Forget(std::span<const BlockId> blocks);
  // Forgets every published prefix and reports kCleared: cached blocks become free, pinned ones
  // stay with their pins and their content, but are no longer found.
  void ClearCache();

  // The unit hashes of a published block, or of the published one that stands for it; empty: none
  // does.
  std::vector<Hash128> UnitsOf(BlockId block) const;
  // Events since the last call, oldest first, and the sequence number of the first of them (counts
  // from 0).
  std::vector<KvCacheEvent> TakeEvents(uint64_t* first_sequence);
  // The whole content of the index as kStored events, parents before children. It includes what
  // pending events say; the next event after it has sequence number *next_sequence, and readers
  // skip older ones.
  std::vector<KvCacheEvent> SnapshotEvents(uint64_t* next_sequence) const;

  BlockStats Stats() const;
  // Walks everything and aborts on a violated invariant (a block in two states, a negative pin, a
  // lost block). Tests and the simulation call it after every step.
  void CheckInvariants() const;

 private:
  friend class Reservation;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
