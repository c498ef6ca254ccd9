#include "kvcache/block_manager.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "common/check.h"
#include "kvcache/block_pool.h"
#include "kvcache/event_log.h"

namespace aisp {

struct BlockManager::Impl {
  explicit Impl(const Options& o)
      : options(o),
        pool(o.layout.num_blocks),
        index(o.layout.num_blocks, o.layout.block_tokens, o.unit_hash),
        events(o.max_pending_events, MaxPendingHashes(o)) {}

  // Enough for all blocks to be evicted and stored again between two calls of TakeEvents.
  static int32_t MaxPendingHashes(const Options& o) {
    const int64_t units = int64_t{o.layout.num_blocks} * (o.layout.block_tokens / kHashUnitTokens);
    return static_cast<int32_t>(std::min<int64_t>(INT32_MAX, 2 * units + o.max_pending_events));
  }

  std::span<const TokenId> BlockTokens(std::span<const TokenId> tokens, size_t i) const {
    const size_t n = static_cast<size_t>(options.layout.block_tokens);
    return tokens.subspan(i * n, n);
  }
  size_t WholeBlocks(size_t tokens) const {
    return tokens / static_cast<size_t>(options.layout.block_tokens);
  }
  // Calls visit(block) for each block of the longest match.
  template <typename Visit>
  void Walk(const Hash128& root, std::span<const TokenId> tokens, int32_t max_tokens,
            PartialMatch* partial, Visit visit) const;

  std::vector<BlockId> TakeBlocks(int32_t n, PinKind kind);
  PrefixIndex::Position PositionBefore(const Hash128& root, std::span<const TokenId> tokens,
                                       std::span<const BlockId> blocks, size_t* first) const;

  const Options options;
  BlockPool pool;
  PrefixIndex index;
  EventLog events;
  std::unordered_map<Epoch, std::vector<BlockId>> leases;
  std::vector<int32_t> matched;  // scratch of MatchAndPin
  uint64_t queries_tokens = 0;
  uint64_t hits_tokens = 0;
  uint64_t evictions = 0;
};

BlockManager::BlockManager(const Options& options) : impl_(std::make_unique<Impl>(options)) {
  impl_->matched.reserve(static_cast<size_t>(options.layout.num_blocks));
}
BlockManager::~BlockManager() = default;

const KvLayout& BlockManager::layout() const { return impl_->options.layout; }

int32_t BlockManager::Available() const { return impl_->pool.free() + impl_->pool.cached(); }

// ---- Taking blocks ----

std::vector<BlockId> BlockManager::Impl::TakeBlocks(int32_t n, PinKind kind) {
  if (const int32_t evict = n - pool.free(); evict > 0) {
    KvCacheEvent removed{KvCacheEvent::Kind::kRemoved, {}};
    removed.unit_hashes.reserve(static_cast<size_t>(evict) *
                                static_cast<size_t>(options.layout.block_tokens / kHashUnitTokens));
    for (int32_t i = 0; i < evict; ++i) {
      const int32_t block = pool.OldestCached();
      index.Erase(block, &removed.unit_hashes);
      pool.Retire(block);
    }
    evictions += static_cast<uint64_t>(evict);
    events.Append(std::move(removed));
  }
  std::vector<BlockId> blocks;
  blocks.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    const int32_t block = pool.TakeFree(kind);
    index.ClearTwin(block);
    blocks.push_back(BlockId(block));
  }
  return blocks;
}

Result<Reservation> BlockManager::Reserve(int32_t n) {
  AISP_CHECK_MSG(n >= 0, "a reservation of fewer than 0 blocks");
  if (n > Available()) {
    return ResourceExhausted("needs " + std::to_string(n) + " KV blocks, " +
                             std::to_string(Available()) + " of " +
                             std::to_string(impl_->pool.total()) +
                             " are free or can be evicted; wait for sequences to finish");
  }
  return Reservation(this, impl_->TakeBlocks(n, PinKind::kReservation));
}

Reservation::Reservation(BlockManager* manager, std::vector<BlockId> blocks)
    : manager_(manager), blocks_(std::move(blocks)) {}

Reservation::Reservation(Reservation&& other) noexcept
    : manager_(std::exchange(other.manager_, nullptr)), blocks_(std::exchange(other.blocks_, {})) {}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this == &other) return *this;
  if (manager_ != nullptr) manager_->Unpin(blocks_, PinKind::kReservation);
  manager_ = std::exchange(other.manager_, nullptr);
  blocks_ = std::exchange(other.blocks_, {});
  return *this;
}

Reservation::~Reservation() {
  if (manager_ != nullptr) manager_->Unpin(blocks_, PinKind::kReservation);
}

std::vector<BlockId> Reservation::Take(PinKind kind) {
  for (const BlockId block : blocks_) {
    manager_->impl_->pool.Repin(block.value, PinKind::kReservation, kind);
  }
  return std::exchange(blocks_, {});
}

// ---- The prefix cache ----

template <typename Visit>
void BlockManager::Impl::Walk(const Hash128& root, std::span<const TokenId> tokens,
                              int32_t max_tokens, PartialMatch* partial, Visit visit) const {
  if (partial != nullptr) *partial = {};
  if (!options.enable_prefix_cache || max_tokens <= 0) return;
  const size_t blocks = WholeBlocks(std::min(tokens.size(), static_cast<size_t>(max_tokens)));
  PrefixIndex::Position position = PrefixIndex::AtRoot(root);
  size_t i = 0;
  for (; i < blocks; ++i) {
    const std::span<const TokenId> content = BlockTokens(tokens, i);
    if (index.Step(&position, content, index.HashUnits(position, content)) !=
        PrefixIndex::Found::kHit)
      break;
    visit(position.block);
  }
  if (partial == nullptr) return;
  const auto unit = static_cast<size_t>(options.layout.block_tokens);
  const std::span<const TokenId> behind = tokens.subspan(i * unit);
  const PrefixIndex::Nearest nearest =
      index.NearestAfter(position, behind.first(std::min(behind.size(), unit)));
  if (nearest.tokens > 0) *partial = {BlockId(nearest.block), nearest.tokens};
}

std::vector<BlockId> BlockManager::MatchAndPin(const Hash128& root, std::span<const TokenId> tokens,
                                               int32_t max_tokens, PartialMatch* partial) {
  std::vector<int32_t>& matched = impl_->matched;
  matched.clear();
  impl_->Walk(root, tokens, max_tokens, partial, [&](int32_t block) { matched.push_back(block); });
  std::vector<BlockId> blocks;
  blocks.reserve(matched.size());
  for (const int32_t block : matched) {
    impl_->pool.Pin(block, PinKind::kSequence);
    blocks.push_back(BlockId(block));
  }
  return blocks;
}

void BlockManager::CountLookup(int32_t looked_up, int32_t found) {
  AISP_CHECK(found >= 0 && looked_up >= found);
  impl_->queries_tokens += static_cast<uint64_t>(looked_up);
  impl_->hits_tokens += static_cast<uint64_t>(found);
}

int32_t BlockManager::MatchLength(const Hash128& root, std::span<const TokenId> tokens,
                                  int32_t max_tokens, int32_t* evictable_blocks,
                                  PartialMatch* partial) const {
  int32_t blocks = 0;
  int32_t evictable = 0;
  impl_->Walk(root, tokens, max_tokens, partial, [&](int32_t block) {
    ++blocks;
    evictable += static_cast<int32_t>(impl_->pool.Cached(block));
  });
  if (evictable_blocks != nullptr) *evictable_blocks = evictable;
  return blocks * layout().block_tokens;
}

// Where publishing resumes: after blocks[*first - 1], or at the root with *first = 0 when no
// published block has that content any more.
PrefixIndex::Position BlockManager::Impl::PositionBefore(const Hash128& root,
                                                         std::span<const TokenId> tokens,
                                                         std::span<const BlockId> blocks,
                                                         size_t* first) const {
  if (*first > 0) {
    const int32_t canonical = index.Canonical(blocks[*first - 1].value);
    if (canonical != PrefixIndex::kNone) {
      AISP_CHECK_MSG(index.HoldsTokens(canonical, BlockTokens(tokens, *first - 1)),
                     "an already published block holds other tokens");
      return index.After(canonical);
    }
  }
  *first = 0;
  return PrefixIndex::AtRoot(root);
}

void BlockManager::Publish(const Hash128& root, std::span<const TokenId> tokens,
                           std::span<const BlockId> blocks, int32_t already_published) {
  Impl& m = *impl_;
  const size_t count = std::min(m.WholeBlocks(tokens.size()), blocks.size());
  AISP_CHECK(already_published >= 0);
  size_t i = static_cast<size_t>(already_published);
  if (!m.options.enable_prefix_cache || i >= count) return;
  PrefixIndex::Position position = m.PositionBefore(root, tokens, blocks, &i);
  KvCacheEvent stored{KvCacheEvent::Kind::kStored, {}};
  for (; i < count; ++i) {
    const int32_t block = blocks[i].value;
    const std::span<const TokenId> content = m.BlockTokens(tokens, i);
    const PrefixIndex::UnitArray units = m.index.HashUnits(position, content);
    switch (m.index.Step(&position, content, units)) {
      case PrefixIndex::Found::kHit:
        if (position.block != block) m.index.SetTwin(block, position.block);
        break;
      case PrefixIndex::Found::kAbsent: {
        const int32_t parent = position.block;
        m.index.Insert(block, &position, content, units);
        m.pool.Publish(block, parent);
        m.index.HashesOf(block, &stored.unit_hashes);
        break;
      }
      case PrefixIndex::Found::kCollision:
        // Another prefix has this hash: this block and its successors stay private.
        for (; i < count; ++i) m.index.ClearTwin(blocks[i].value);
        break;
    }
  }
  if (!stored.unit_hashes.empty()) m.events.Append(std::move(stored));
}

std::vector<BlockId> BlockManager::Forget(std::span<const BlockId> blocks) {
  Impl& m = *impl_;
  int32_t top = PrefixIndex::kNone;
  for (size_t i = 0; i < blocks.size() && top == PrefixIndex::kNone; ++i)
    top = m.index.Canonical(blocks[i].value);
  std::vector<BlockId> forgotten;
  if (top == PrefixIndex::kNone) return forgotten;
  while (m.index.Parent(top) != PrefixIndex::kNone) top = m.index.Parent(top);
  KvCacheEvent removed{KvCacheEvent::Kind::kRemoved, {}};
  for (const int32_t block : m.index.Subtree(top)) {
    m.index.Erase(block, &removed.unit_hashes);
    m.pool.Unpublish(block);
    forgotten.push_back(BlockId(block));
  }
  m.events.Append(std::move(removed));
  return forgotten;
}

void BlockManager::ClearCache() {
  impl_->index.Clear();
  impl_->pool.UnpublishAll();
  impl_->events.Append({KvCacheEvent::Kind::kCleared, {}});
}

// ---- Pins and leases ----

void BlockManager::Pin(std::span<const BlockId> blocks, PinKind kind) {
  for (const BlockId block : blocks) impl_->pool.Pin(block.value, kind);
}

// Last block first, so that a chain enters the eviction list at once, leaf first.
void BlockManager::Unpin(std::span<const BlockId> blocks, PinKind kind) {
  for (size_t i = blocks.size(); i > 0; --i) impl_->pool.Unpin(blocks[i - 1].value, kind);
}

void BlockManager::BeginLease(Epoch epoch, std::span<const BlockId> blocks) {
  const bool inserted =
      impl_->leases.emplace(epoch, std::vector(blocks.begin(), blocks.end())).second;
  AISP_CHECK_MSG(inserted, "an epoch is granted twice");
  Pin(blocks, PinKind::kLease);
}

void BlockManager::EndLease(Epoch epoch) {
  const auto it = impl_->leases.find(epoch);
  if (it == impl_->leases.end()) return;
  const std::vector<BlockId> blocks = std::move(it->second);
  impl_->leases.erase(it);
  Unpin(blocks, PinKind::kLease);
}

int32_t BlockManager::LeasedBlocks() const { return impl_->pool.lease_pins(); }

// ---- Queries and events ----

std::vector<Hash128> BlockManager::UnitsOf(BlockId block) const {
  std::vector<Hash128> units;
  const int32_t published = impl_->index.Canonical(block.value);
  if (published != PrefixIndex::kNone) impl_->index.HashesOf(published, &units);
  return units;
}

std::vector<KvCacheEvent> BlockManager::TakeEvents(uint64_t* first_sequence) {
  return impl_->events.Take(first_sequence);
}

std::vector<KvCacheEvent> BlockManager::SnapshotEvents(uint64_t* next_sequence) const {
  constexpr size_t kHashesPerEvent = 4096;
  const Impl& m = *impl_;
  *next_sequence = m.events.next_sequence();
  std::vector<KvCacheEvent> events;
  std::vector<bool> done(static_cast<size_t>(m.pool.total()), false);
  std::vector<int32_t> path;
  for (int32_t start = 0; start < m.pool.total(); ++start) {
    // Up to the first ancestor already listed, then down again.
    for (int32_t b = start;
         b != PrefixIndex::kNone && m.index.Published(b) && !done[static_cast<size_t>(b)];
         b = m.index.Parent(b)) {
      done[static_cast<size_t>(b)] = true;
      path.push_back(b);
    }
    for (; !path.empty(); path.pop_back()) {
      if (events.empty() || events.back().unit_hashes.size() >= kHashesPerEvent)
        events.emplace_back();
      m.index.HashesOf(path.back(), &events.back().unit_hashes);
    }
  }
  return events;
}

BlockStats BlockManager::Stats() const {
  const Impl& m = *impl_;
  return {.total = m.pool.total(),
          .free = m.pool.free(),
          .cached = m.pool.cached(),
          .pinned = m.pool.total() - m.pool.free() - m.pool.cached(),
          .quarantined = m.pool.quarantined(),
          .queries_tokens = m.queries_tokens,
          .hits_tokens = m.hits_tokens,
          .evictions = m.evictions};
}

void BlockManager::CheckInvariants() const {
  const Impl& m = *impl_;
  m.pool.CheckInvariants();
  m.index.CheckInvariants();
  for (int32_t block = 0; block < m.pool.total(); ++block) {
    AISP_CHECK_MSG(m.pool.Published(block) == m.index.Published(block), "pool and index disagree");
    AISP_CHECK_MSG(m.pool.Parent(block) == m.index.Parent(block), "pool and index disagree");
  }
  size_t leased = 0;
  for (const auto& [epoch, blocks] : m.leases) leased += blocks.size();
  AISP_CHECK(leased == static_cast<size_t>(m.pool.lease_pins()));
}

}  // namespace aisp
