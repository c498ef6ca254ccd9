#include "common/prefix_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace aisp {
namespace {

std::vector<TokenId> Tokens(size_t count) {
  std::vector<TokenId> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 100);
  return tokens;
}

TEST(PrefixRoot, SeparatesItsFields) {
  const std::set<Hash128> roots = {
      PrefixRoot("w", "bf16", "", ""),  PrefixRoot("w", "bf16", "a", ""),
      PrefixRoot("w", "bf16", "", "a"), PrefixRoot("w", "bf1", "6", ""),
      PrefixRoot("wb", "f16", "", ""),  PrefixRoot("", "", "", ""),
      PrefixRoot("w", "fp8", "", ""),
  };
  EXPECT_EQ(roots.size(), 7u);
  EXPECT_EQ(PrefixRoot("w", "bf16", "a", "t"), PrefixRoot("w", "bf16", "a", "t"));
}

TEST(UnitHashes, CoverWholeUnitsOnly) {
  const Hash128 root = PrefixRoot("w", "bf16", "", "");
  EXPECT_TRUE(UnitHashes(root, Tokens(15)).empty());
  EXPECT_EQ(UnitHashes(root, Tokens(16)).size(), 1u);
  EXPECT_EQ(UnitHashes(root, Tokens(47)).size(), 2u);
}

TEST(UnitHashes, APrefixHasThePrefixOfTheHashes) {
  const Hash128 root = PrefixRoot("w", "bf16", "", "");
  const auto longer = UnitHashes(root, Tokens(64));
  const auto shorter = UnitHashes(root, Tokens(32));
  EXPECT_TRUE(std::equal(shorter.begin(), shorter.end(), longer.begin()));
  // The chain continues from any unit.
  const auto tokens = Tokens(64);
  EXPECT_EQ(HashChain(longer[1], std::span(tokens).subspan(32, 16)), longer[2]);
}

TEST(UnitHashes, AChangedTokenChangesItsUnitAndAllAfter) {
  const Hash128 root = PrefixRoot("w", "bf16", "", "");
  auto tokens = Tokens(48);
  const auto before = UnitHashes(root, tokens);
  ++tokens[20];
  const auto after = UnitHashes(root, tokens);
  EXPECT_EQ(before[0], after[0]);
  EXPECT_NE(before[1], after[1]);
  EXPECT_NE(before[2], after[2]);
}

}  // namespace
}  // namespace aisp
