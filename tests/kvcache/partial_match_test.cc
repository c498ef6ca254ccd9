// Partial matches after a prefix hit, compared with a search of all cached blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "common/random.h"
#include "kvcache/block_manager.h"

namespace aisp {
namespace {

constexpr int32_t kUnit = 16;
const Hash128 kRoot{1, 2};
const Hash128 kOtherRoot{3, 4};
using Tokens = std::vector<TokenId>;

BlockManager::Options Pool(int32_t num_blocks, UnitHashFunction hash = &HashChain) {
  BlockManager::Options options;
  options.layout = {.num_layers = 1,
                    .num_kv_heads = 1,
                    .head_dim = 8,
                    .block_tokens = kUnit,
                    .num_blocks = num_blocks};
  options.unit_hash = hash;
  return options;
}

Tokens Counting(int32_t count) {
  Tokens tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(i);
  return tokens;
}

// `tokens`, changed from position `same` on.
Tokens Differing(Tokens tokens, size_t same, TokenId by) {
  for (size_t i = same; i < tokens.size(); ++i) tokens[i] += by;
  return tokens;
}

// A finished sequence: its whole blocks are published and unpinned.
std::vector<BlockId> Cache(BlockManager& manager, const Tokens& tokens,
                           const Hash128& root = kRoot) {
  std::vector<BlockId> blocks = manager.MatchAndPin(root, tokens, INT32_MAX);
  const auto matched = static_cast<int32_t>(blocks.size());
  Result<Reservation> more = manager.Reserve(static_cast<int32_t>(tokens.size()) / kUnit - matched);
  EXPECT_TRUE(more.has_value());
  for (const BlockId block : more->Take(PinKind::kSequence)) blocks.push_back(block);
  manager.Publish(root, tokens, blocks, matched);
  manager.Unpin(blocks, PinKind::kSequence);
  manager.CheckInvariants();
  return blocks;
}

PartialMatch Find(const BlockManager& manager, std::span<const TokenId> tokens,
                  int32_t limit = INT32_MAX, const Hash128& root = kRoot) {
  PartialMatch partial{BlockId(77), 77};
  manager.MatchLength(root, tokens, limit, nullptr, &partial);
  return partial;
}

TEST(PartialMatches, TheBlockThatSharesMostTokensIsFound) {
  BlockManager manager(Pool(16));
  const Tokens tokens = Counting(32);
  std::map<size_t, BlockId> sharing;  // by how many tokens of the second block
  for (const size_t shared : {3, 11, 7})
    sharing[shared] = Cache(manager, Differing(tokens, 16 + shared, 1000))[1];
  Cache(manager, Differing(tokens, 0, 500));
  PartialMatch partial;
  const std::vector<BlockId> match = manager.MatchAndPin(kRoot, tokens, INT32_MAX, &partial);
  EXPECT_EQ(match.size(), 1u);
  EXPECT_EQ(partial.block, sharing[11]);
  EXPECT_EQ(partial.tokens, 11);
  EXPECT_EQ(manager.Stats().pinned, 1) << "what was found is not pinned";
  manager.Unpin(match, PinKind::kSequence);
  for (const auto& [shared, block] : sharing)
    EXPECT_EQ(Find(manager, Differing(tokens, 16 + shared, -500)).tokens,
              static_cast<int32_t>(shared));
  // A prompt that ends inside the block.
  partial = Find(manager, std::span(tokens).first(16 + 9));
  EXPECT_EQ(partial.tokens, 9);
  EXPECT_EQ(partial.block, sharing[11]);
  EXPECT_EQ(Find(manager, {}).tokens, 0);
  EXPECT_EQ(Find(manager, std::span(tokens).first(16)).tokens, 0);
  EXPECT_EQ(Find(manager, tokens, INT32_MAX, kOtherRoot).tokens, 0);
  manager.ClearCache();
  EXPECT_EQ(Find(manager, tokens).tokens, 0);
}

TEST(PartialMatches, ABlockBeyondTheLimitIsOneWithAllItsTokens) {
  BlockManager manager(Pool(8));
  const Tokens tokens = Counting(48);
  const std::vector<BlockId> blocks = Cache(manager, tokens);
  EXPECT_EQ(Find(manager, tokens, 47).block, blocks[2]);
  EXPECT_EQ(Find(manager, tokens, 47).tokens, 16);
  EXPECT_EQ(Find(manager, tokens, 15).block, blocks[0]);
  EXPECT_EQ(Find(manager, tokens, 0).tokens, 0);
}

TEST(PartialMatches, OfManySiblingsTheNewestAreLookedAtAndTheOneWithAllTokensIsFound) {
  BlockManager manager(Pool(200));
  const Tokens tokens = Counting(32);
  const std::vector<BlockId> first = Cache(manager, tokens);
  for (int i = 1; i <= PrefixIndex::kMostSiblings; ++i)
    Cache(manager, Differing(tokens, 16 + 3, 1000 * i));
  EXPECT_EQ(Find(manager, tokens, 31).block, first[1]);
  EXPECT_EQ(Find(manager, tokens, 31).tokens, 16);
  EXPECT_EQ(Find(manager, std::span(tokens).first(16 + 9)).tokens, 3);
}

Hash128 FourBitHash(const Hash128& parent, std::span<const TokenId> unit) {
  return {HashChain(parent, unit).lo & 15, 0};
}

// Tokens from a small tree, so that many share prefixes of every length.
Tokens Random(SplitMix64& random) {
  Tokens tokens;
  const auto count = static_cast<int32_t>(random.Below(5 * kUnit));
  for (int32_t i = 0; i < count; ++i) tokens.push_back(random.Below(12) == 0 ? 1 : 0);
  return tokens;
}

// In a pool that evicts all the time. Hash collisions hide blocks: then the match found may be
// shorter than another, but never wrong.
TEST(PartialMatches, NoneSharesMoreThanTheOneThatIsFound) {
  for (const UnitHashFunction hash : {&HashChain, &FourBitHash}) {
    BlockManager manager(Pool(24, hash));
    SplitMix64 random(5);
    std::map<int32_t, std::pair<Hash128, Tokens>>
        content;  // the content last assumed for the block
    int found = 0;
    for (int i = 0; i < 3000; ++i) {
      const Hash128 root = random.Below(2) == 0 ? kRoot : kOtherRoot;
      const Tokens tokens = Random(random);
      const auto limit = static_cast<int32_t>(random.Below(tokens.size() + 8));
      PartialMatch partial;
      const auto matched =
          static_cast<size_t>(manager.MatchLength(root, tokens, limit, nullptr, &partial));
      int32_t most = 0;
      for (const auto& [block, cached] : content) {
        const auto& [its_root, its] = cached;
        if (its_root != root || its.size() != matched + kUnit || limit == 0) continue;
        if (manager.UnitsOf(BlockId(block)).empty()) continue;
        const auto shared = std::ranges::mismatch(its, tokens).in1 - its.begin();
        const auto here = static_cast<int32_t>(shared - static_cast<ptrdiff_t>(matched));
        most = std::max(most, here);
        if (partial.tokens > 0 && partial.block.value == block) {
          EXPECT_EQ(here, partial.tokens);
        }
      }
      if (hash == &HashChain) {
        EXPECT_EQ(partial.tokens, most);
      }
      EXPECT_LE(partial.tokens, most);
      found += partial.tokens > 0 ? 1 : 0;
      const std::vector<BlockId> blocks = Cache(manager, tokens, root);
      for (size_t b = 0; b < blocks.size(); ++b) {
        const auto end = static_cast<ptrdiff_t>((b + 1) * kUnit);
        content[blocks[b].value] = {root, Tokens(tokens.begin(), tokens.begin() + end)};
      }
    }
    EXPECT_GT(found, 500);
    // Four bits allow fewer hashes than blocks.
    if (hash == &HashChain) {
      EXPECT_GT(manager.Stats().evictions, 500u);
    }
  }
}

}  // namespace
}  // namespace aisp
