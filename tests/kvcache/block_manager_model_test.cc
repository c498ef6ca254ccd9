// BlockManager against a naive model: thousands of random operations, everything compared after
// each.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/random.h"
#include "kvcache/block_manager.h"

namespace aisp {
namespace {

// The whole prefix up to the end of a block; a block's physical content depends on all of it.
struct Prefix {
  uint64_t root = 0;
  std::vector<TokenId> tokens;
  auto operator<=>(const Prefix&) const = default;
};

struct Sequence {
  Prefix prefix;  // tokens so far
  std::vector<BlockId> blocks;
  int32_t computed = 0;  // tokens whose KV is in the blocks
  int32_t published = 0;
  int32_t step_pins = 0;
};

struct Shape {
  int32_t num_blocks;
  int32_t block_tokens;
  UnitHashFunction hash;
  bool exact;  // without collisions the model predicts every match
  uint64_t seed;
};

Hash128 FourBitHash(const Hash128& parent, std::span<const TokenId> unit) {
  return {HashChain(parent, unit).lo & 15, 0};
}

class Harness {
 public:
  explicit Harness(const Shape& shape)
      : shape_(shape), random_(shape.seed), manager_(MakeOptions(shape)) {
    blocks_.resize(static_cast<size_t>(shape.num_blocks));
  }

  void Run(int operations) {
    for (operation_ = 1; operation_ <= operations && !testing::Test::HasFailure(); ++operation_) {
      OneOperation();
      Compare();
    }
    while (!sequences_.empty()) End(0);
    for (const auto& [epoch, blocks] : leases_) manager_.EndLease(Epoch(epoch));
    leases_.clear();
    reservations_.clear();
    EXPECT_EQ(manager_.Available(), shape_.num_blocks) << "blocks were lost";
    EXPECT_GT(evictions_seen_, 0);
  }

 private:
  struct ModelBlock {
    std::map<PinKind, int> pins;
    std::optional<Prefix> content;    // what the memory holds
    std::optional<Prefix> published;  // the prefix it is found as
    int cached_since = -1;            // operation in which it became evictable
  };

  static BlockManager::Options MakeOptions(const Shape& shape) {
    BlockManager::Options options;
    options.layout = {.num_layers = 1,
                      .num_kv_heads = 1,
                      .head_dim = 8,
                      .block_tokens = shape.block_tokens,
                      .num_blocks = shape.num_blocks};
    options.unit_hash = shape.hash;
    return options;
  }
  static Hash128 Root(uint64_t root) { return {root, ~root}; }

  ModelBlock& Block(BlockId id) { return blocks_[static_cast<size_t>(id.value)]; }

  void ModelPin(std::span<const BlockId> blocks, PinKind kind, int delta) {
    for (const BlockId b : blocks) {
      int& pins = Block(b).pins[kind];
      pins += delta;
      ASSERT_GE(pins, 0);
    }
  }

  Prefix BlockPrefix(const Prefix& prefix, size_t block) const {
    const size_t end = (block + 1) * static_cast<size_t>(shape_.block_tokens);
    return {prefix.root,
            {prefix.tokens.begin(), prefix.tokens.begin() + static_cast<ptrdiff_t>(end)}};
  }
  BlockId ModelFind(const Prefix& prefix) const {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      if (blocks_[i].published == prefix) return BlockId(static_cast<int32_t>(i));
    }
    return BlockId(-1);
  }

  // Tokens from a small tree: many sequences share prefixes of many lengths, some differing only
  // inside a block.
  void AppendTokens(Prefix* prefix, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
      const bool fork = prefix->tokens.size() % 16 == 7 || prefix->tokens.size() % 16 == 15;
      prefix->tokens.push_back(fork ? static_cast<TokenId>(random_.Below(10) < 8 ? 0 : 1) : 5);
    }
  }

  // Reserves blocks; checks that the oldest cached ones were evicted for them.
  std::vector<BlockId> Reserve(int32_t n, PinKind kind, Reservation* keep) {
    const int32_t available = manager_.Available();
    const int32_t free = manager_.Stats().free;
    Result<Reservation> reservation = manager_.Reserve(n);
    EXPECT_EQ(reservation.has_value(), n <= available);
    if (!reservation) return {};
    std::vector<BlockId> blocks(reservation->blocks().begin(), reservation->blocks().end());
    CheckEvicted(blocks, std::max(0, n - free));
    for (const BlockId b : blocks) {
      ModelBlock& block = Block(b);
      for (const auto& [k, pins] : block.pins)
        EXPECT_EQ(pins, 0) << "block " << b.value << " given out twice";
      block.content.reset();
    }
    if (keep != nullptr) {
      *keep = std::move(*reservation);
    } else {
      EXPECT_EQ(reservation->Take(kind), blocks);
    }
    ModelPin(blocks, kind, +1);
    return blocks;
  }

  void CheckEvicted(const std::vector<BlockId>& blocks, int32_t expected) {
    std::vector<int> ages;
    for (const ModelBlock& block : blocks_) {
      if (block.cached_since >= 0) ages.push_back(block.cached_since);
    }
    std::vector<int> evicted;
    for (const BlockId b : blocks) {
      ModelBlock& block = Block(b);
      if (!block.published) continue;
      evicted.push_back(block.cached_since);
      block.published.reset();
      block.cached_since = -1;
      ++evictions_seen_;
    }
    std::ranges::sort(ages);
    std::ranges::sort(evicted);
    ASSERT_EQ(evicted.size(), static_cast<size_t>(expected));
    ages.resize(evicted.size());
    EXPECT_EQ(evicted, ages) << "not the least recently used were evicted";
  }

  void OneOperation() {
    switch (random_.Below(16)) {
      case 0:
      case 1:
      case 2:
        return Start();
      case 3:
      case 4:
      case 5:
      case 6:
        return Grow();
      case 7:
      case 8:
        return Publish();
      case 9:
      case 10:
        return sequences_.empty() ? Start() : End(random_.Below(sequences_.size()));
      case 11:
        return StepPins();
      case 12:
        return Lease();
      case 13:
        return EndSomeLease();
      case 14:
        return ReserveOrDrop();
      default:
        if (random_.Below(20) == 0) return Forget();
        return random_.Below(40) == 0 ? Clear() : CheckEvents();
    }
  }

  void Start() {
    Sequence s;
    s.prefix.root = random_.Below(2);
    AppendTokens(&s.prefix, static_cast<int32_t>(
                                random_.Below(6 * static_cast<uint64_t>(shape_.block_tokens))));
    const int32_t limit = static_cast<int32_t>(random_.Below(s.prefix.tokens.size() + 20));
    std::vector<BlockId> expected;
    const size_t whole = std::min(s.prefix.tokens.size(), static_cast<size_t>(limit)) /
                         static_cast<size_t>(shape_.block_tokens);
    for (size_t i = 0; i < whole; ++i) {
      const BlockId b = ModelFind(BlockPrefix(s.prefix, i));
      if (b.value < 0) break;
      expected.push_back(b);
    }
    int32_t evictable = 0;
    EXPECT_EQ(manager_.MatchLength(Root(s.prefix.root), s.prefix.tokens, limit, &evictable),
              static_cast<int32_t>(expected.size()) * shape_.block_tokens);
    const int32_t available = manager_.Available();
    s.blocks = manager_.MatchAndPin(Root(s.prefix.root), s.prefix.tokens, limit);
    EXPECT_EQ(s.blocks, expected);
    EXPECT_EQ(manager_.Available(), available - evictable);
    for (size_t i = 0; i < s.blocks.size(); ++i) {
      EXPECT_EQ(Block(s.blocks[i]).content, BlockPrefix(s.prefix, i))
          << "wrong content was matched";
    }
    ModelPin(s.blocks, PinKind::kSequence, +1);
    s.computed = static_cast<int32_t>(s.blocks.size()) * shape_.block_tokens;
    s.published = static_cast<int32_t>(s.blocks.size());
    sequences_.push_back(std::move(s));
    Compare();  // matched blocks are no longer evictable
    Fill(sequences_.back());
  }

  // Blocks for all tokens, with content.
  void Fill(Sequence& s) {
    const int32_t tokens = static_cast<int32_t>(s.prefix.tokens.size());
    const int32_t missing = (tokens + shape_.block_tokens - 1) / shape_.block_tokens -
                            static_cast<int32_t>(s.blocks.size());
    if (missing > manager_.Available()) {
      EXPECT_FALSE(manager_.Reserve(missing).has_value());
      return;
    }
    for (const BlockId b : Reserve(missing, PinKind::kSequence, nullptr)) s.blocks.push_back(b);
    s.computed = tokens;
    for (size_t i = 0; i < s.prefix.tokens.size() / static_cast<size_t>(shape_.block_tokens); ++i) {
      ModelBlock& block = Block(s.blocks[i]);
      const Prefix content = BlockPrefix(s.prefix, i);
      if (block.published) {
        EXPECT_EQ(*block.published, content);
      }
      block.content = content;
    }
  }

  void Grow() {
    if (sequences_.empty()) return Start();
    Sequence& s = sequences_[random_.Below(sequences_.size())];
    if (s.computed != static_cast<int32_t>(s.prefix.tokens.size())) return Fill(s);
    if (s.blocks.size() > 10) return;
    AppendTokens(&s.prefix, static_cast<int32_t>(1 + random_.Below(20)));
    Fill(s);
  }

  void Publish() {
    if (sequences_.empty()) return;
    Sequence& s = sequences_[random_.Below(sequences_.size())];
    const std::span<const TokenId> computed =
        std::span(s.prefix.tokens).first(static_cast<size_t>(s.computed));
    manager_.Publish(Root(s.prefix.root), computed, s.blocks, s.published);
    const size_t whole = computed.size() / static_cast<size_t>(shape_.block_tokens);
    if (whole <= static_cast<size_t>(s.published))
      return;  // nothing new, even if the cache was cleared meanwhile
    for (size_t i = 0; i < whole; ++i) {
      if (!shape_.exact) {
        // The model does not predict which blocks a collision keeps private: it accepts what the
        // manager finds. Start checks content.
        if (manager_.MatchLength(Root(s.prefix.root), s.prefix.tokens,
                                 static_cast<int32_t>(i + 1) * shape_.block_tokens) <=
            static_cast<int32_t>(i) * shape_.block_tokens) {
          break;
        }
      }
      const Prefix prefix = BlockPrefix(s.prefix, i);
      if (ModelFind(prefix).value < 0) Block(s.blocks[i]).published = prefix;
    }
    s.published = std::max(s.published, static_cast<int32_t>(whole));
  }

  void End(size_t index) {
    Sequence s = std::move(sequences_[index]);
    sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(index));
    for (; s.step_pins > 0; --s.step_pins) {
      manager_.Unpin(s.blocks, PinKind::kStep);
      ModelPin(s.blocks, PinKind::kStep, -1);
    }
    manager_.Unpin(s.blocks, PinKind::kSequence);
    ModelPin(s.blocks, PinKind::kSequence, -1);
  }

  void StepPins() {
    if (sequences_.empty()) return;
    Sequence& s = sequences_[random_.Below(sequences_.size())];
    if (s.computed != static_cast<int32_t>(s.prefix.tokens.size()) || s.step_pins > 0) return;
    manager_.Pin(s.blocks, PinKind::kStep);
    ModelPin(s.blocks, PinKind::kStep, +1);
    // The step ends later, with the sequence, or now.
    if (random_.Below(2) == 0) {
      manager_.Unpin(s.blocks, PinKind::kStep);
      ModelPin(s.blocks, PinKind::kStep, -1);
    } else {
      s.step_pins = 1;
    }
    // A sequence with a step in flight must not change its table here: End unpins the same blocks.
    if (s.step_pins > 0) {
      End(static_cast<size_t>(&s - sequences_.data()));
    }
  }

  void Lease() {
    if (sequences_.empty()) return;
    const Sequence& s = sequences_[random_.Below(sequences_.size())];
    if (s.blocks.empty() || leases_.size() > 3) return;
    const size_t from = random_.Below(s.blocks.size());
    const std::vector<BlockId> blocks(s.blocks.begin() + static_cast<ptrdiff_t>(from),
                                      s.blocks.end());
    manager_.BeginLease(Epoch(++last_epoch_), blocks);
    ModelPin(blocks, PinKind::kLease, +1);
    leases_[last_epoch_] = blocks;
  }

  void EndSomeLease() {
    manager_.EndLease(Epoch(last_epoch_ + 1));
    if (leases_.empty()) return;
    auto it = std::next(leases_.begin(), static_cast<ptrdiff_t>(random_.Below(leases_.size())));
    manager_.EndLease(Epoch(it->first));
    manager_.EndLease(Epoch(it->first));
    ModelPin(it->second, PinKind::kLease, -1);
    leases_.erase(it);
  }

  void ReserveOrDrop() {
    if (!reservations_.empty() && random_.Below(2) == 0) {
      ModelPin(reservations_.back().blocks(), PinKind::kReservation, -1);
      reservations_.pop_back();
      return;
    }
    Reservation reservation;
    Reserve(static_cast<int32_t>(random_.Below(static_cast<uint64_t>(shape_.num_blocks) / 3)),
            PinKind::kReservation, &reservation);
    reservations_.push_back(std::move(reservation));
    while (reservations_.size() > 2) {
      ModelPin(reservations_.front().blocks(), PinKind::kReservation, -1);
      reservations_.erase(reservations_.begin());
    }
  }

  // The tree of a sequence's prefix is no longer found, and nothing else is lost.
  void Forget() {
    if (sequences_.empty()) return;
    const Sequence& s = sequences_[random_.Below(sequences_.size())];
    const std::vector<BlockId> forgotten = manager_.Forget(s.blocks);
    std::set<int32_t> expected;
    if (!forgotten.empty()) {
      const Prefix top = BlockPrefix(s.prefix, 0);
      for (size_t i = 0; i < blocks_.size(); ++i) {
        const auto& found = blocks_[i].published;
        if (!found || found->root != top.root) continue;
        if (std::equal(top.tokens.begin(), top.tokens.end(), found->tokens.begin()))
          expected.insert(static_cast<int32_t>(i));
      }
    }
    for (const BlockId id : forgotten) {
      EXPECT_EQ(expected.erase(id.value), 1u);
      Block(id).published.reset();
      Block(id).cached_since = -1;
    }
    EXPECT_TRUE(expected.empty());
    for (const BlockId id : s.blocks) EXPECT_FALSE(Block(id).published);
  }

  void Clear() {
    manager_.ClearCache();
    for (ModelBlock& block : blocks_) {
      block.published.reset();
      block.cached_since = -1;
    }
  }

  // A reader's view, from events or from a snapshot, equals the index's content.
  void CheckEvents() {
    uint64_t first = 0;
    for (const KvCacheEvent& event : manager_.TakeEvents(&first)) {
      EXPECT_EQ(first++, view_next_++);
      if (event.kind == KvCacheEvent::Kind::kCleared) view_.clear();
      for (const Hash128& hash : event.unit_hashes) {
        if (event.kind == KvCacheEvent::Kind::kStored) view_.insert(hash);
        if (event.kind == KvCacheEvent::Kind::kRemoved) {
          EXPECT_EQ(view_.erase(hash), 1u);
        }
      }
    }
    uint64_t next = 0;
    std::set<Hash128> snapshot;
    for (const KvCacheEvent& event : manager_.SnapshotEvents(&next)) {
      snapshot.insert(event.unit_hashes.begin(), event.unit_hashes.end());
    }
    EXPECT_EQ(next, view_next_);
    EXPECT_EQ(snapshot, view_);
    if (!shape_.exact) return;
    std::set<Hash128> expected;
    for (const ModelBlock& block : blocks_) {
      if (!block.published) continue;
      for (const Hash128& hash : UnitHashes(Root(block.published->root), block.published->tokens)) {
        expected.insert(hash);
      }
    }
    EXPECT_EQ(view_, expected);
  }

  // Compares held blocks, by definition, and the manager's numbers.
  void Compare() {
    std::vector<bool> held(blocks_.size(), false);
    int32_t quarantined = 0, leased = 0;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      int pins = 0;
      for (const auto& [kind, n] : blocks_[i].pins) pins += n;
      const int lease_pins = blocks_[i].pins[PinKind::kLease];
      leased += lease_pins;
      quarantined += static_cast<int32_t>(pins > 0 && pins == lease_pins);
      if (pins == 0) continue;
      held[i] = true;
      if (!blocks_[i].published) continue;
      for (size_t j = 0; j < blocks_.size(); ++j) {
        if (blocks_[j].published && IsAncestor(*blocks_[j].published, *blocks_[i].published))
          held[j] = true;
      }
    }
    BlockStats expected{.total = shape_.num_blocks, .quarantined = quarantined};
    for (size_t i = 0; i < blocks_.size(); ++i) {
      ModelBlock& block = blocks_[i];
      const bool cached = block.published && !held[i];
      if (!cached) block.cached_since = -1;
      if (cached && block.cached_since < 0) block.cached_since = operation_;
      expected.cached += static_cast<int32_t>(cached);
      expected.pinned += static_cast<int32_t>(held[i]);
      expected.free += static_cast<int32_t>(!cached && !held[i]);
    }
    const BlockStats stats = manager_.Stats();
    EXPECT_EQ(stats.total, expected.total);
    EXPECT_EQ(stats.free, expected.free);
    EXPECT_EQ(stats.cached, expected.cached);
    EXPECT_EQ(stats.pinned, expected.pinned);
    EXPECT_EQ(stats.quarantined, expected.quarantined);
    EXPECT_EQ(manager_.LeasedBlocks(), leased);
    EXPECT_EQ(manager_.Available(), expected.free + expected.cached);
    manager_.CheckInvariants();
  }

  static bool IsAncestor(const Prefix& a, const Prefix& b) {
    return a.root == b.root && a.tokens.size() < b.tokens.size() &&
           std::equal(a.tokens.begin(), a.tokens.end(), b.tokens.begin());
  }

  const Shape shape_;
  SplitMix64 random_;
  BlockManager manager_;
  std::vector<ModelBlock> blocks_;
  std::vector<Sequence> sequences_;
  std::map<uint64_t, std::vector<BlockId>> leases_;
  std::vector<Reservation> reservations_;
  uint64_t last_epoch_ = 0;
  std::set<Hash128> view_;
  uint64_t view_next_ = 0;
  int operation_ = 0;
  int evictions_seen_ = 0;
};

TEST(BlockManagerModel, RandomOperationsAgreeWithTheNaiveModel) {
  for (const int32_t block_tokens : {16, 32, 64}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const Shape shape{.num_blocks = 40,
                        .block_tokens = block_tokens,
                        .hash = &HashChain,
                        .exact = true,
                        .seed = seed};
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << ", " << block_tokens << " tokens a block");
      Harness(shape).Run(3000);
      if (HasFailure()) return;
    }
  }
}

TEST(BlockManagerModel, CollidingHashesNeverGiveWrongContent) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const Shape shape{
        .num_blocks = 40, .block_tokens = 16, .hash = &FourBitHash, .exact = false, .seed = seed};
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", four-bit hashes");
    Harness(shape).Run(3000);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace aisp
