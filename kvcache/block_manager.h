// BlockManager: tracks the state of every block of one pool.
//
// It knows no requests, only tokens, block ids and pins. A block is in exactly one of these states:
//   - free: no pin, content meaningless
//   - cached: no pin, content published in the prefix index; evictable, least recently used first
//   - pinned: >= 1 pin: held by a sequence, a step in flight, a reservation, a copy to or from
//     another tier or worker, or a remote writer's lease; or without a pin of its own, but with a
//     pinned published descendant that eviction would make unreachable
//   - quarantined: pinned only by a lease whose grant was revoked before the writer acknowledged
//     (see below)
//
// Preempting and cancelling only drop pins. Published blocks without pins stay cached.
//
// Quarantine: another process's mapping cannot be revoked. A block granted to a remote writer keeps
// its lease pin until the writer has acknowledged the epoch or is proven dead (EndLease), even if
// the sequence that wanted it has ended.
//
// Costs: Reserve, Pin, Unpin and evictions are O(1) per block; matching and publishing are O(blocks
// visited); a partial match checks a bounded number of blocks.
//
// Owned by one engine thread; not thread-safe; never blocks; allocates no memory per call beyond
// the returned vectors, pending events and lease records. Misuse (unpinning more than was pinned,
// granting an epoch twice) fails a check.
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

// Blocks from the free list (or evicted from the cache), pinned with kReservation. Move-only: the
// destructor returns blocks that were not taken.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept;
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation();

  std::span<const BlockId> blocks() const { return blocks_; }
  // Turns the reservation's pins into pins of `kind`, which the caller then owns.
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
  int32_t pinned = 0;           // by anything, including quarantined blocks
  int32_t quarantined = 0;      // lease pin only
  uint64_t queries_tokens = 0;  // from CountLookup
  uint64_t hits_tokens = 0;
  uint64_t evictions = 0;
};

// A published block that follows a match and starts with the same tokens as the prompt there.
struct PartialMatch {
  BlockId block{-1};
  int32_t tokens = 0;  // number of equal leading tokens; 0: no such block
};

class BlockManager {
 public:
  struct Options {
    KvLayout layout;
    bool enable_prefix_cache = true;
    // Beyond this, pending events are dropped and TakeEvents shows a gap in the sequence numbers;
    // the reader then requests a snapshot.
    int32_t max_pending_events = 65536;
    UnitHashFunction unit_hash = &HashChain;  // tests of collisions use a weak one
  };
  explicit BlockManager(const Options& options);
  ~BlockManager();
  BlockManager(const BlockManager&) = delete;
  BlockManager& operator=(const BlockManager&) = delete;

  const KvLayout& layout() const;

  // Blocks that Reserve could return now: free + cached.
  int32_t Available() const;

  // n >= 0 blocks, or RESOURCE_EXHAUSTED with the number available. Evicts cached blocks: least
  // recently used first, and deepest in its chain first.
  Result<Reservation> Reserve(int32_t n);

  // The longest run of cached whole blocks that hold tokens[0, k * block_tokens) under `root`, at
  // most `max_tokens` tokens; each is pinned with kSequence for the caller (release with Unpin).
  // Tokens are compared, not only hashes. `*partial`: see PrefixIndex::NearestAfter; counts tokens
  // beyond `max_tokens` too; not pinned.
  std::vector<BlockId> MatchAndPin(const Hash128& root, std::span<const TokenId> tokens,
                                   int32_t max_tokens, PartialMatch* partial = nullptr);
  // Statistics: a sequence could have found `looked_up` tokens in the cache and started with
  // `found`. Called once per sequence, however often it was matched.
  void CountLookup(int32_t looked_up, int32_t found);
  // The match in tokens, without pinning or changing the LRU order. `*evictable_blocks`: how many
  // matched blocks are evictable, i.e. by how much pinning the match lowers Available(). `*partial`
  // as in MatchAndPin.
  int32_t MatchLength(const Hash128& root, std::span<const TokenId> tokens, int32_t max_tokens,
                      int32_t* evictable_blocks = nullptr, PartialMatch* partial = nullptr) const;

  // Publishes whole blocks: blocks[i] holds tokens[i*block_tokens, (i+1)*block_tokens); `tokens`
  // starts at position 0. blocks[0, already_published) were published by earlier calls; the caller
  // pins all of them. If equal content is already published in another block, this block stays
  // private to its pins.
  void Publish(const Hash128& root, std::span<const TokenId> tokens,
               std::span<const BlockId> blocks, int32_t already_published);

  void Pin(std::span<const BlockId> blocks, PinKind kind);
  void Unpin(std::span<const BlockId> blocks, PinKind kind);

  // Adds a lease pin to each block until the epoch ends. `blocks` are pinned by the caller; epochs
  // are never reused.
  void BeginLease(Epoch epoch, std::span<const BlockId> blocks);
  void EndLease(
      Epoch epoch);  // acknowledged or proven dead; unknown epochs are ignored (a late second ack)
  int32_t LeasedBlocks()
      const;  // lease pins of all open epochs: the most blocks that silent writers can hold

  // Unpublishes the published prefix of a sequence with these `blocks`, and all that follows any of
  // them: cached blocks become free; pinned ones keep their pins but are no longer found. Returns
  // the unpublished blocks; O(blocks of the pool).
  std::vector<BlockId> Forget(std::span<const BlockId> blocks);
  // Unpublishes everything and reports kCleared: cached blocks become free; pinned ones keep pins
  // and content but are no longer found.
  void ClearCache();

  // The unit hashes of a published block, or of the published block with the same content; empty:
  // none.
  std::vector<Hash128> UnitsOf(BlockId block) const;
  // Events since the last call, oldest first, and the sequence number of the first (from 0 on).
  std::vector<KvCacheEvent> TakeEvents(uint64_t* first_sequence);
  // The whole index as kStored events, parents before children, including pending events. The next
  // event has sequence number *next_sequence; readers skip older ones.
  std::vector<KvCacheEvent> SnapshotEvents(uint64_t* next_sequence) const;

  BlockStats Stats() const;
  // Checks everything and aborts on a violated invariant (a block in two states, a negative pin, a
  // lost block). Tests and the simulation call it after every step.
  void CheckInvariants() const;

 private:
  friend class Reservation;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
