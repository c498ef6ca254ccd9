#include "common/prefix_hash.h"

#include <gtest/gtest.h>
#define XXH_INLINE_ALL  // XXH3_kSecret
#include <xxhash.h>

#include <cstring>
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

uint64_t SecretAt(size_t offset) {
  uint64_t word = 0;
  std::memcpy(&word, XXH3_kSecret + offset, sizeof(word));
  return word;
}

// XXH3 multiplies the halves of (input xor a published secret). If one half is zero, the other has
// no effect and the input itself is only added: then a difference between two stripes cancels out.
std::string Colliding(size_t before, uint64_t difference) {
  constexpr size_t kStripe = 64, kBytes = 512;
  std::string all(before + kBytes, 's');
  const uint64_t first = SecretAt(8) ^ (difference << 32);
  const uint64_t constant = SecretAt(8) + SecretAt(16);
  uint64_t second = constant - first;
  // For this attack the input's low half must equal the secret's.
  EXPECT_EQ(static_cast<uint32_t>(second), static_cast<uint32_t>(SecretAt(16)));
  std::memcpy(all.data() + kStripe, &first, sizeof(first));
  std::memcpy(all.data() + 2 * kStripe, &second, sizeof(second));
  return all.substr(before);
}

TEST(PrefixRoot, DiffersBetweenScopesThatCollideUnderTheHashOfUnits) {
  // Before the scope come four lengths and the other fields. All of it is hashed at once.
  constexpr size_t kBefore = 4 * sizeof(uint64_t) + 1 + 4;
  const std::string mine = Colliding(kBefore, 0x1234), other = Colliding(kBefore, 0x77aa55);
  ASSERT_NE(mine, other);
  const auto framed = [](const std::string& scope) {
    std::string bytes;
    for (const std::string& field : {std::string("w"), std::string("bf16"), std::string(), scope}) {
      const uint64_t length = field.size();
      bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
      bytes.append(field);
    }
    return bytes;
  };
  ASSERT_EQ(HashBytes(framed(mine)), HashBytes(framed(other))) << "the pair does not collide";
  EXPECT_NE(PrefixRoot("w", "bf16", "", mine), PrefixRoot("w", "bf16", "", other));
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
