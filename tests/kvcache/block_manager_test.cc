#include "kvcache/block_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <utility>

namespace aisp {
namespace {

using testing::ElementsAreArray;
using testing::IsEmpty;

constexpr int32_t kBlockTokens = 16;
const Hash128 kRoot{1, 2};
const Hash128 kOtherRoot{3, 4};

BlockManager::Options SmallPool(int32_t num_blocks, int32_t block_tokens = kBlockTokens) {
  BlockManager::Options options;
  options.layout = {.num_layers = 2,
                    .num_kv_heads = 1,
                    .head_dim = 8,
                    .block_tokens = block_tokens,
                    .num_blocks = num_blocks};
  return options;
}

// Tokens of `blocks` blocks that depend on `seed` from block `same` on.
std::vector<TokenId> Tokens(int32_t blocks, int32_t seed = 0, int32_t same = 0,
                            int32_t block_tokens = kBlockTokens) {
  std::vector<TokenId> tokens;
  for (int32_t i = 0; i < blocks * block_tokens; ++i) {
    tokens.push_back(i < same * block_tokens ? i : i + 100000 * (seed + 1));
  }
  return tokens;
}

std::vector<BlockId> Take(BlockManager& manager, int32_t n) {
  Result<Reservation> reservation = manager.Reserve(n);
  EXPECT_TRUE(reservation.has_value());
  return reservation->Take(PinKind::kSequence);
}

// A finished sequence: its blocks are published and unpinned.
std::vector<BlockId> Cache(BlockManager& manager, const std::vector<TokenId>& tokens,
                           const Hash128& root = kRoot) {
  const int32_t block_tokens = manager.layout().block_tokens;
  std::vector<BlockId> blocks = manager.MatchAndPin(root, tokens, INT32_MAX);
  const int32_t matched = static_cast<int32_t>(blocks.size());
  for (const BlockId b :
       Take(manager, static_cast<int32_t>(tokens.size()) / block_tokens - matched)) {
    blocks.push_back(b);
  }
  manager.Publish(root, tokens, blocks, matched);
  manager.Unpin(blocks, PinKind::kSequence);
  manager.CheckInvariants();
  return blocks;
}

int32_t Match(const BlockManager& manager, const std::vector<TokenId>& tokens,
              const Hash128& root = kRoot) {
  return manager.MatchLength(root, tokens, INT32_MAX) / manager.layout().block_tokens;
}

TEST(BlockManager, ReservationGivesBackWhatWasNotTaken) {
  BlockManager manager(SmallPool(4));
  {
    Result<Reservation> reservation = manager.Reserve(3);
    ASSERT_TRUE(reservation.has_value());
    EXPECT_EQ(manager.Available(), 1);
    Reservation moved = std::move(*reservation);
    EXPECT_EQ(moved.blocks().size(), 3u);
    EXPECT_EQ(manager.Available(), 1);
  }
  EXPECT_EQ(manager.Available(), 4);
  manager.CheckInvariants();
}

TEST(BlockManager, AssigningAReservationGivesBackItsFormerBlocks) {
  BlockManager manager(SmallPool(4));
  Reservation held = std::move(*manager.Reserve(3));
  held = std::move(*manager.Reserve(1));
  EXPECT_EQ(manager.Available(), 3);
  held = Reservation();
  EXPECT_EQ(manager.Available(), 4);
}

TEST(BlockManager, TakenBlocksOutliveTheReservation) {
  BlockManager manager(SmallPool(4));
  const std::vector<BlockId> blocks = Take(manager, 2);
  EXPECT_EQ(manager.Available(), 2);
  manager.Unpin(blocks, PinKind::kSequence);
  EXPECT_EQ(manager.Available(), 4);
}

TEST(BlockManager, ReserveBeyondThePoolNamesBothNumbersAndTakesNothing) {
  BlockManager manager(SmallPool(4));
  const std::vector<BlockId> blocks = Take(manager, 1);
  const Result<Reservation> reservation = manager.Reserve(4);
  ASSERT_FALSE(reservation.has_value());
  EXPECT_EQ(reservation.error().code, Code::kResourceExhausted);
  EXPECT_THAT(reservation.error().message, testing::HasSubstr("needs 4"));
  EXPECT_THAT(reservation.error().message, testing::HasSubstr("3 of 4"));
  EXPECT_EQ(manager.Available(), 3);
  EXPECT_TRUE(manager.Reserve(0).has_value());
}

TEST(BlockManager, FinishedSequenceIsFoundByItsTokens) {
  BlockManager manager(SmallPool(8));
  const std::vector<TokenId> tokens = Tokens(3);
  const std::vector<BlockId> blocks = Cache(manager, tokens);
  EXPECT_EQ(manager.Stats().cached, 3);
  EXPECT_EQ(manager.Available(), 8);
  EXPECT_THAT(manager.MatchAndPin(kRoot, tokens, INT32_MAX), ElementsAreArray(blocks));
  EXPECT_EQ(manager.Available(), 5);
}

TEST(BlockManager, MatchStopsAtTheLimitInWholeBlocks) {
  BlockManager manager(SmallPool(8));
  const std::vector<TokenId> tokens = Tokens(3);
  const std::vector<BlockId> blocks = Cache(manager, tokens);
  EXPECT_EQ(manager.MatchLength(kRoot, tokens, 47), 32);
  EXPECT_EQ(manager.MatchLength(kRoot, tokens, 15), 0);
  EXPECT_EQ(manager.MatchLength(kRoot, tokens, 0), 0);
  EXPECT_EQ(manager.MatchLength(kRoot, tokens, -5), 0);
  EXPECT_THAT(manager.MatchAndPin(kRoot, tokens, 47), ElementsAreArray({blocks[0], blocks[1]}));
}

TEST(BlockManager, AnotherRootSharesNothing) {
  BlockManager manager(SmallPool(8));
  Cache(manager, Tokens(3));
  EXPECT_EQ(Match(manager, Tokens(3), kOtherRoot), 0);
  Cache(manager, Tokens(3), kOtherRoot);
  EXPECT_EQ(manager.Stats().cached, 6);
}

TEST(BlockManager, SharedPrefixSurvivesOwnerRelease) {
  BlockManager manager(SmallPool(6));
  const std::vector<TokenId> first = Tokens(4, 0, 2);
  const std::vector<TokenId> second = Tokens(4, 1, 2);
  Cache(manager, first);
  const std::vector<BlockId> shared = manager.MatchAndPin(kRoot, second, INT32_MAX);
  ASSERT_EQ(shared.size(), 2u);
  // All the rest is reserved: the first sequence's own tail is evicted, the shared prefix is not.
  const std::vector<BlockId> rest = Take(manager, 4);
  EXPECT_EQ(manager.Available(), 0);
  EXPECT_EQ(Match(manager, first), 2);
  manager.CheckInvariants();
}

TEST(BlockManager, LeastRecentlyUsedChainIsEvictedFirstAndItsLeafBeforeItsRoot) {
  BlockManager manager(SmallPool(6));
  const std::vector<TokenId> older = Tokens(3, 1);
  const std::vector<TokenId> newer = Tokens(3, 2);
  Cache(manager, older);
  Cache(manager, newer);
  manager.Unpin(manager.MatchAndPin(kRoot, older, INT32_MAX),
                PinKind::kSequence);  // now `older` is more recently used
  for (int32_t evicted = 1; evicted <= 3; ++evicted) {
    Take(manager, 1);
    EXPECT_EQ(Match(manager, newer), 3 - evicted);
    EXPECT_EQ(Match(manager, older), 3);
    manager.CheckInvariants();
  }
  EXPECT_EQ(manager.Stats().evictions, 3u);
}

TEST(BlockManager, MatchLengthDoesNotRefresh) {
  BlockManager manager(SmallPool(2));
  Cache(manager, Tokens(1, 1));
  Cache(manager, Tokens(1, 2));
  EXPECT_EQ(Match(manager, Tokens(1, 1)), 1);
  Take(manager, 1);
  EXPECT_EQ(Match(manager, Tokens(1, 1)), 0);
  EXPECT_EQ(Match(manager, Tokens(1, 2)), 1);
}

TEST(BlockManager, LookupsCountWhenTheyAreToldAndNotWhenTheyAreTried) {
  BlockManager manager(SmallPool(8));
  const std::vector<TokenId> tokens = Tokens(3);
  Cache(manager, tokens);
  for (int i = 0; i < 5; ++i)
    manager.Unpin(manager.MatchAndPin(kRoot, tokens, INT32_MAX), PinKind::kSequence);
  EXPECT_EQ(manager.Stats().queries_tokens, 0u);
  manager.CountLookup(48, 32);
  EXPECT_EQ(manager.Stats().queries_tokens, 48u);
  EXPECT_EQ(manager.Stats().hits_tokens, 32u);
}

TEST(BlockManager, EqualContentStaysPublishedOnceAndTheCopyIsPrivate) {
  BlockManager manager(SmallPool(8));
  const std::vector<TokenId> tokens = Tokens(2);
  const std::vector<BlockId> first = Take(manager, 2);
  const std::vector<BlockId> second = Take(manager, 2);
  manager.Publish(kRoot, tokens, first, 0);
  manager.Publish(kRoot, tokens, second, 0);
  manager.Unpin(second, PinKind::kSequence);
  EXPECT_EQ(manager.Stats().cached, 0);
  EXPECT_EQ(manager.Stats().free, 6);
  EXPECT_THAT(manager.MatchAndPin(kRoot, tokens, INT32_MAX), ElementsAreArray(first));
}

TEST(BlockManager, ChainBelowAPrivateCopyHangsUnderThePublishedTwinAndKeepsIt) {
  BlockManager manager(SmallPool(4));
  const std::vector<TokenId> tokens = Tokens(2);
  const std::vector<BlockId> owner = Take(manager, 1);
  manager.Publish(kRoot, tokens, owner, 0);
  const std::vector<BlockId> copy = Take(manager, 2);
  manager.Publish(kRoot, std::span(tokens).first(16), copy, 0);
  manager.Publish(kRoot, tokens, copy, 1);
  EXPECT_EQ(Match(manager, tokens), 2);

  manager.Unpin(owner,
                PinKind::kSequence);  // no pin, but the copy's second block depends on it
  EXPECT_EQ(manager.Stats().cached, 0);
  EXPECT_EQ(manager.Available(), 1);
  manager.CheckInvariants();
  manager.Unpin(copy, PinKind::kSequence);
  EXPECT_EQ(manager.Stats().cached, 2);
  EXPECT_EQ(manager.Available(), 4);
  manager.CheckInvariants();
}

TEST(BlockManager, PublishingGoesOnAfterTheTwinWasEvicted) {
  BlockManager manager(SmallPool(4));
  const std::vector<TokenId> tokens = Tokens(2);
  Cache(manager, Tokens(1));
  const std::vector<BlockId> copy = Take(manager, 2);
  manager.Publish(kRoot, std::span(tokens).first(16), copy, 0);  // the cached block is the twin
  const std::vector<BlockId> rest = Take(manager, 2);            // evicts it
  EXPECT_EQ(Match(manager, tokens), 0);
  manager.Publish(kRoot, tokens, copy, 1);
  EXPECT_THAT(manager.MatchAndPin(kRoot, tokens, INT32_MAX), ElementsAreArray(copy));
  manager.CheckInvariants();
}

TEST(BlockManager, PartialBlocksAreNotPublished) {
  BlockManager manager(SmallPool(4));
  std::vector<TokenId> tokens = Tokens(2);
  tokens.resize(31);
  const std::vector<BlockId> blocks = Take(manager, 2);
  manager.Publish(kRoot, tokens, blocks, 0);
  EXPECT_EQ(manager.MatchLength(kRoot, tokens, INT32_MAX), 16);
  manager.Unpin(blocks, PinKind::kSequence);
  EXPECT_EQ(manager.Stats().free, 3);
}

TEST(BlockManager, DisabledPrefixCacheKeepsNothing) {
  BlockManager::Options options = SmallPool(4);
  options.enable_prefix_cache = false;
  BlockManager manager(options);
  Cache(manager, Tokens(2));
  EXPECT_EQ(Match(manager, Tokens(2)), 0);
  EXPECT_EQ(manager.Stats().free, 4);
  uint64_t first = 7;
  EXPECT_THAT(manager.TakeEvents(&first), IsEmpty());
}

// Every unit hashes to one of two values.
Hash128 WeakHash(const Hash128& parent, std::span<const TokenId> unit) {
  return {HashChain(parent, unit).lo & 1, 0};
}

TEST(BlockManager, CollidingHashIsAMissNotAHit) {
  BlockManager::Options options = SmallPool(64);
  options.unit_hash = &WeakHash;
  BlockManager manager(options);
  int32_t found = 0;
  for (int32_t seed = 0; seed < 16; ++seed) {
    Cache(manager, Tokens(1, seed));
    found += Match(manager, Tokens(1, seed));
  }
  EXPECT_EQ(found,
            manager.Stats().cached);  // the others collided with one of these, and are private
  EXPECT_LE(found, 2);
  EXPECT_GE(found, 1);
}

TEST(BlockManager, StepPinKeepsBlocksOfACancelledSequence) {
  BlockManager manager(SmallPool(2));
  const std::vector<BlockId> blocks = Take(manager, 2);
  manager.Pin(blocks, PinKind::kStep);
  manager.Unpin(blocks, PinKind::kSequence);
  EXPECT_EQ(manager.Available(), 0);
  EXPECT_EQ(manager.Stats().quarantined, 0);
  manager.Unpin(blocks, PinKind::kStep);
  EXPECT_EQ(manager.Available(), 2);
}

TEST(BlockManager, LeasedBlocksStayInQuarantineUntilTheEpochEnds) {
  BlockManager manager(SmallPool(4));
  const std::vector<BlockId> blocks = Take(manager, 3);
  manager.BeginLease(Epoch(1), blocks);
  EXPECT_EQ(manager.LeasedBlocks(), 3);
  EXPECT_EQ(manager.Stats().quarantined, 0);
  manager.Unpin(blocks, PinKind::kSequence);
  EXPECT_EQ(manager.Stats().quarantined, 3);
  EXPECT_EQ(manager.Available(), 1);
  EXPECT_FALSE(manager.Reserve(2).has_value());
  manager.EndLease(Epoch(2));  // unknown
  EXPECT_EQ(manager.LeasedBlocks(), 3);
  manager.EndLease(Epoch(1));
  manager.EndLease(Epoch(1));  // a late second acknowledgement
  EXPECT_EQ(manager.LeasedBlocks(), 0);
  EXPECT_EQ(manager.Stats().quarantined, 0);
  EXPECT_EQ(manager.Available(), 4);
  manager.CheckInvariants();
}

TEST(BlockManagerDeathTest, MisuseIsAFailedCheck) {
  BlockManager manager(SmallPool(2));
  const std::vector<BlockId> blocks = Take(manager, 1);
  manager.BeginLease(Epoch(1), blocks);
  EXPECT_DEATH(manager.BeginLease(Epoch(1), blocks), "granted twice");
  EXPECT_DEATH(manager.Unpin(blocks, PinKind::kStep), "more often than pinned");
  EXPECT_DEATH(manager.Pin(std::vector{BlockId(1)}, PinKind::kStep), "free block");
  EXPECT_DEATH(manager.Pin(std::vector{BlockId(2)}, PinKind::kStep), "outside the pool");
}

TEST(BlockManager, EventsTellWhatWasStoredAndRemovedInOrder) {
  BlockManager manager(SmallPool(2));
  const std::vector<TokenId> tokens = Tokens(2);
  const std::vector<Hash128> hashes = UnitHashes(kRoot, tokens);
  Cache(manager, tokens);
  Take(manager, 1);
  uint64_t first = 99;
  std::vector<KvCacheEvent> events = manager.TakeEvents(&first);
  EXPECT_EQ(first, 0u);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, KvCacheEvent::Kind::kStored);
  EXPECT_THAT(events[0].unit_hashes, ElementsAreArray(hashes));
  EXPECT_EQ(events[1].kind, KvCacheEvent::Kind::kRemoved);
  EXPECT_THAT(events[1].unit_hashes, ElementsAreArray({hashes[1]}));

  manager.ClearCache();
  events = manager.TakeEvents(&first);
  EXPECT_EQ(first, 2u);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, KvCacheEvent::Kind::kCleared);
}

TEST(BlockManager, UnitSharedByTwoBlocksIsRemovedWithTheLast) {
  BlockManager manager(SmallPool(2, 32));
  std::vector<TokenId> a = Tokens(1, 0, 0, 32);
  std::vector<TokenId> b = a;
  b.back() = -1;  // the same first unit, another second one
  Cache(manager, a);
  Cache(manager, b);
  uint64_t first = 0;
  manager.TakeEvents(&first);
  Take(manager, 1);
  Take(manager, 1);
  const std::vector<KvCacheEvent> events = manager.TakeEvents(&first);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_THAT(events[0].unit_hashes, ElementsAreArray({UnitHashes(kRoot, a)[1]}));
  EXPECT_THAT(events[1].unit_hashes, ElementsAreArray(UnitHashes(kRoot, b)));
}

TEST(BlockManager, SnapshotTellsParentsBeforeChildrenAndTheNextNumber) {
  BlockManager manager(SmallPool(16, 32));
  const std::vector<TokenId> tokens = Tokens(5, 0, 0, 32);
  Cache(manager, tokens);
  uint64_t next = 0;
  const std::vector<KvCacheEvent> snapshot = manager.SnapshotEvents(&next);
  EXPECT_EQ(next, 1u);
  ASSERT_EQ(snapshot.size(), 1u);
  EXPECT_THAT(snapshot[0].unit_hashes, ElementsAreArray(UnitHashes(kRoot, tokens)));
}

TEST(BlockManager, EventsThatNobodyTakesBecomeAGap) {
  BlockManager::Options options = SmallPool(64);
  options.max_pending_events = 4;
  BlockManager manager(options);
  for (int32_t seed = 0; seed < 10; ++seed) Cache(manager, Tokens(1, seed));
  uint64_t first = 0;
  const std::vector<KvCacheEvent> events = manager.TakeEvents(&first);
  EXPECT_GT(first, 0u);
  EXPECT_LE(events.size(), 4u);
  EXPECT_EQ(first + events.size(), 10u);
  uint64_t next = 0;
  manager.SnapshotEvents(&next);
  EXPECT_EQ(next, 10u);
}

TEST(BlockManager, ClearedCacheKeepsPinnedBlocksAndFindsNothing) {
  BlockManager manager(SmallPool(8));
  Cache(manager, Tokens(2, 1));
  const std::vector<TokenId> tokens = Tokens(3, 2);
  const std::vector<BlockId> running = Take(manager, 3);
  manager.Publish(kRoot, std::span(tokens).first(32), running, 0);
  manager.ClearCache();
  manager.CheckInvariants();
  EXPECT_EQ(Match(manager, Tokens(2, 1)), 0);
  EXPECT_EQ(Match(manager, tokens), 0);
  EXPECT_EQ(manager.Available(), 5);
  manager.Publish(kRoot, tokens, running, 2);  // a sequence that continues publishes again
  EXPECT_EQ(Match(manager, tokens), 3);
  manager.Unpin(running, PinKind::kSequence);
  EXPECT_EQ(manager.Available(), 8);
  manager.CheckInvariants();
}

TEST(BlockManager, ForgettingAPrefixTakesWhatHangsOnItAndNothingElse) {
  BlockManager manager(SmallPool(16));
  const std::vector<TokenId> base = Tokens(3, 0, /*same=*/2);
  const std::vector<TokenId> branch = Tokens(4, 1, /*same=*/2);
  const std::vector<TokenId> other = Tokens(3, 2);
  Cache(manager, base);
  Cache(manager, branch);
  Cache(manager, other);
  Cache(manager, base, kOtherRoot);
  uint64_t first = 0;
  manager.TakeEvents(&first);
  const std::vector<BlockId> held = manager.MatchAndPin(kRoot, base, INT32_MAX);
  ASSERT_EQ(held.size(), 3u);
  const BlockStats before = manager.Stats();
  // Its three blocks and the two of the unpinned branch.
  EXPECT_EQ(manager.Forget(held).size(), 5u);
  manager.CheckInvariants();
  EXPECT_EQ(manager.MatchLength(kRoot, base, INT32_MAX), 0);
  EXPECT_EQ(manager.MatchLength(kRoot, branch, INT32_MAX), 0);
  EXPECT_EQ(manager.MatchLength(kRoot, other, INT32_MAX), 3 * kBlockTokens);
  EXPECT_EQ(manager.MatchLength(kOtherRoot, base, INT32_MAX), 3 * kBlockTokens);
  EXPECT_EQ(manager.Stats().free, before.free + 2) << "held blocks stay with who holds them";
  const std::vector<KvCacheEvent> events = manager.TakeEvents(&first);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, KvCacheEvent::Kind::kRemoved);
  EXPECT_EQ(events[0].unit_hashes.size(), 5u);
  EXPECT_THAT(manager.Forget(held), IsEmpty());
  manager.Unpin(held, PinKind::kSequence);
  manager.CheckInvariants();
  EXPECT_EQ(manager.Stats().free, before.free + 5);
}

}  // namespace
}  // namespace aisp
