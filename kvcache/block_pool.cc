#include "kvcache/block_pool.h"

#include <utility>

#include "common/check.h"

namespace aisp {

BlockPool::BlockPool(int32_t num_blocks) {
  AISP_CHECK(num_blocks >= 0);
  blocks_.resize(static_cast<size_t>(num_blocks));
  free_.reserve(blocks_.size());
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

size_t BlockPool::Index(int32_t block) const {
  AISP_CHECK_MSG(block >= 0 && static_cast<size_t>(block) < blocks_.size(),
                 "block id outside the pool");
  return static_cast<size_t>(block);
}

int32_t BlockPool::TakeFree(PinKind kind) {
  AISP_CHECK(!free_.empty());
  const int32_t block = free_.back();
  free_.pop_back();
  Block& b = blocks_[Index(block)];
  b.free = false;
  AddPins(b, kind, +1);
  return block;
}

void BlockPool::AddPins(Block& block, PinKind kind, int32_t delta) {
  uint32_t& pins = block.pins[static_cast<size_t>(kind)];
  AISP_CHECK_MSG(delta > 0 || pins > 0, "unpinned more often than pinned");
  const bool quarantined_before = block.Quarantined();
  pins += static_cast<uint32_t>(delta);
  quarantined_ +=
      static_cast<int32_t>(block.Quarantined()) - static_cast<int32_t>(quarantined_before);
  if (kind == PinKind::kLease) lease_pins_ += delta;
}

void BlockPool::Pin(int32_t block, PinKind kind) {
  Block& b = blocks_[Index(block)];
  AISP_CHECK_MSG(!b.free, "pinning a free block");
  const bool held_before = b.Held();
  AddPins(b, kind, +1);
  if (!held_before) Hold(block);
}

void BlockPool::Unpin(int32_t block, PinKind kind) {
  Block& b = blocks_[Index(block)];
  AddPins(b, kind, -1);
  if (b.Held()) return;
  if (b.published) {
    Unhold(block);
  } else {
    MakeFree(block);
  }
}

void BlockPool::Repin(int32_t block, PinKind from, PinKind to) {
  Block& b = blocks_[Index(block)];
  AISP_CHECK_MSG(b.pins[static_cast<size_t>(from)] > 0, "unpinned more often than pinned");
  AddPins(b, to, +1);
  AddPins(b, from, -1);
}

void BlockPool::Publish(int32_t block, int32_t parent) {
  Block& b = blocks_[Index(block)];
  AISP_CHECK_MSG(!b.published && b.TotalPins() > 0,
                 "only a pinned, unpublished block can be published");
  b.published = true;
  b.parent = parent;
  if (parent == kNone) return;
  Block& p = blocks_[Index(parent)];
  AISP_CHECK(p.published);
  const bool held_before = p.Held();
  ++p.held_children;
  if (!held_before) Hold(parent);
}

void BlockPool::Retire(int32_t block) {
  AISP_CHECK(block == oldest_);
  RemoveCached(block);
  Block& b = blocks_[Index(block)];
  b.published = false;
  b.parent = kNone;
  MakeFree(block);
}

void BlockPool::Unpublish(int32_t block) {
  Block& b = blocks_[Index(block)];
  AISP_CHECK(b.published && b.held_children == 0);
  const int32_t parent = std::exchange(b.parent, kNone);
  if (!b.Held()) {
    RemoveCached(block);
    b.published = false;
    return MakeFree(block);
  }
  b.published = false;
  if (parent == kNone) return;
  Block& p = blocks_[Index(parent)];
  --p.held_children;
  if (!p.Held()) Unhold(parent);
}

void BlockPool::UnpublishAll() {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    Block& b = blocks_[i];
    if (!b.published) continue;
    b.published = false;
    b.parent = kNone;
    b.held_children = 0;
    b.older = b.newer = kNone;
    if (b.TotalPins() == 0) MakeFree(static_cast<int32_t>(i));
  }
  oldest_ = newest_ = kNone;
  cached_ = 0;
}

void BlockPool::Hold(int32_t block) {
  while (true) {
    RemoveCached(block);
    const int32_t parent = blocks_[Index(block)].parent;
    if (parent == kNone) return;
    Block& p = blocks_[Index(parent)];
    const bool held_before = p.Held();
    ++p.held_children;
    if (held_before) return;
    block = parent;
  }
}

void BlockPool::Unhold(int32_t block) {
  while (true) {
    PushNewest(block);
    const int32_t parent = blocks_[Index(block)].parent;
    if (parent == kNone) return;
    Block& p = blocks_[Index(parent)];
    --p.held_children;
    if (p.Held()) return;
    block = parent;
  }
}

void BlockPool::PushNewest(int32_t block) {
  Block& b = blocks_[Index(block)];
  b.older = newest_;
  b.newer = kNone;
  (newest_ == kNone ? oldest_ : blocks_[Index(newest_)].newer) = block;
  newest_ = block;
  ++cached_;
}

void BlockPool::RemoveCached(int32_t block) {
  Block& b = blocks_[Index(block)];
  (b.older == kNone ? oldest_ : blocks_[Index(b.older)].newer) = b.newer;
  (b.newer == kNone ? newest_ : blocks_[Index(b.newer)].older) = b.older;
  b.older = b.newer = kNone;
  --cached_;
}

void BlockPool::MakeFree(int32_t block) {
  blocks_[Index(block)].free = true;
  free_.push_back(block);
}

void BlockPool::CheckInvariants() const {
  const size_t n = blocks_.size();
  std::vector<int32_t> held_children(n, 0);
  int32_t free_count = 0, cached_count = 0, quarantined_count = 0, leases = 0;
  for (size_t i = 0; i < n; ++i) {
    const Block& b = blocks_[i];
    leases += static_cast<int32_t>(b.pins[static_cast<size_t>(PinKind::kLease)]);
    quarantined_count += static_cast<int32_t>(b.Quarantined());
    free_count += static_cast<int32_t>(b.free);
    cached_count += static_cast<int32_t>(b.published && !b.Held());
    AISP_CHECK_MSG(!b.free || (!b.Held() && !b.published), "a free block is pinned or published");
    AISP_CHECK_MSG(b.free || b.Held() || b.published, "a block is lost");
    if (b.published && b.parent != kNone) {
      AISP_CHECK_MSG(blocks_[Index(b.parent)].published,
                     "a published block's parent is not published");
      if (b.Held()) ++held_children[Index(b.parent)];
    }
  }
  for (size_t i = 0; i < n; ++i) AISP_CHECK(held_children[i] == blocks_[i].held_children);
  AISP_CHECK(free_count == free() && quarantined_count == quarantined_ && leases == lease_pins_);

  std::vector<bool> in_free(n, false);
  for (const int32_t block : free_) {
    AISP_CHECK_MSG(blocks_[Index(block)].free && !in_free[Index(block)], "free list is wrong");
    in_free[Index(block)] = true;
  }
  // The list contains exactly the cached blocks, children before parents.
  std::vector<bool> seen(n, false);
  int32_t listed = 0;
  for (int32_t block = oldest_; block != kNone; block = blocks_[Index(block)].newer, ++listed) {
    const Block& b = blocks_[Index(block)];
    AISP_CHECK(listed < cached_count && b.published && !b.Held() && !seen[Index(block)]);
    AISP_CHECK_MSG(b.parent == kNone || !seen[Index(b.parent)],
                   "a parent would be evicted before its child");
    seen[Index(block)] = true;
  }
  AISP_CHECK(listed == cached_count && cached_ == cached_count);
}

}  // namespace aisp
