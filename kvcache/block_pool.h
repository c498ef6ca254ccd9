// BlockPool: pins, the free list, and the eviction order. Part of BlockManager.
//
// Published blocks form a forest (a block's parent holds the preceding tokens). A block is *held*
// when it has a pin or a held published child: evicting it would make that child unreachable.
// Published blocks that are not held are cached. They form one list, oldest first, in which every
// child precedes its parent, because a block is appended only after all its children. So the front
// is always a leaf, the least recently used one, and eviction is O(1). Unpinning a whole chain
// costs O(its length) in any order of calls.
//
// One thread; allocates only in the constructor.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kvcache/pin_kind.h"

namespace aisp {

class BlockPool {
 public:
  static constexpr int32_t kNone = -1;

  explicit BlockPool(int32_t num_blocks);

  int32_t total() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t cached() const { return cached_; }
  int32_t quarantined() const { return quarantined_; }
  int32_t lease_pins() const { return lease_pins_; }

  // Takes a free block (one must exist) with one pin of `kind`.
  int32_t TakeFree(PinKind kind);
  // The cached block to evict next, or kNone.
  int32_t OldestCached() const { return oldest_; }

  // The block must not be free.
  void Pin(int32_t block, PinKind kind);
  // The pin must exist. A block without pins becomes cached if published (and not held by a
  // descendant), else free.
  void Unpin(int32_t block, PinKind kind);
  // Replaces one pin of `from` by one of `to`.
  void Repin(int32_t block, PinKind from, PinKind to);

  // Published and not held: evictable.
  bool Cached(int32_t block) const {
    const Block& b = blocks_[Index(block)];
    return b.published && !b.Held();
  }

  // Publishes a pinned block below `parent` (published, or kNone).
  void Publish(int32_t block, int32_t parent);
  // Frees the cached leaf OldestCached().
  void Retire(int32_t block);
  // Unpublishes a block without published children: a cached one becomes free, a pinned one keeps
  // its pins.
  void Unpublish(int32_t block);
  // Unpublishes all blocks: cached ones become free, pinned ones keep their pins.
  void UnpublishAll();

  // For CheckInvariants.
  bool Published(int32_t block) const { return blocks_[Index(block)].published; }
  int32_t Parent(int32_t block) const { return blocks_[Index(block)].parent; }
  void CheckInvariants() const;

 private:
  struct Block {
    std::array<uint32_t, kPinKinds> pins{};
    int32_t held_children = 0;
    int32_t parent = kNone;
    int32_t older = kNone;  // neighbours in the list of cached blocks
    int32_t newer = kNone;
    bool published = false;
    bool free = true;

    uint32_t TotalPins() const { return std::accumulate(pins.begin(), pins.end(), 0u); }
    bool Held() const { return TotalPins() > 0 || held_children > 0; }
    bool Quarantined() const {
      const uint32_t leases = pins[static_cast<size_t>(PinKind::kLease)];
      return leases > 0 && leases == TotalPins();
    }
  };

  size_t Index(int32_t block) const;
  void AddPins(Block& block, PinKind kind, int32_t delta);
  void Hold(int32_t block);  // it became held: it and its ancestors leave the list
  void Unhold(
      int32_t block);  // it is no longer held: it and ancestors held only by it enter the list
  void PushNewest(int32_t block);
  void RemoveCached(int32_t block);
  void MakeFree(int32_t block);

  std::vector<Block> blocks_;
  std::vector<int32_t> free_;  // a stack: recently used blocks are warm in caches
  int32_t oldest_ = kNone;
  int32_t newest_ = kNone;
  int32_t cached_ = 0;
  int32_t quarantined_ = 0;
  int32_t lease_pins_ = 0;
};

}  // namespace aisp
