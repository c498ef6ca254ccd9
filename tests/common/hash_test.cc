#include "common/hash.h"

#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <xxhash.h>

namespace aisp {
namespace {

using namespace std::string_literals;

// XXH3-128 of the empty input with seed 0, from xxHash's own test vectors.
TEST(HashBytes, MatchesThePublishedVectorOfTheEmptyInput) {
  EXPECT_EQ(HashBytes(std::string_view()).ToHex(), "99aa06d3014798d86001c324468d497f");
}

TEST(HashBytes, SameBytesInBothForms) {
  const std::string text = "prefill and decode";
  EXPECT_EQ(HashBytes(text), HashBytes(std::as_bytes(std::span(text))));
}

// Long inputs take another code path where the CPU has wide vectors. The hashes are on the wire and
// on disks, so machines of all kinds must agree.
TEST(Hash64, IsTheSameWhateverTheVectorsAre) {
  std::string bytes(4096, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  EXPECT_EQ(Hash64(bytes), 0x8fb047a89e810965);
  EXPECT_EQ(Hash64(std::as_bytes(std::span(bytes)), 5), 0x8f076a883381abf7);
  EXPECT_EQ(Hash64(std::as_bytes(std::span(bytes)), 0), Hash64(bytes));
  // For inputs above 240 bytes it is the lower half of the wider hash, which HashChain computes
  // without vector code.
  for (size_t size = 241; size <= bytes.size(); size += 13)
    EXPECT_EQ(Hash64(std::string_view(bytes).substr(0, size)), HashBytes(bytes.substr(0, size)).lo);
}

// The chain's value is part of the protocol between processes: parent.lo, parent.hi, tokens, all
// little-endian.
TEST(HashChain, HashesParentThenTokensForShortAndLongRuns) {
  const Hash128 parent{0x1122334455667788, 0x99aabbccddeeff00};
  for (size_t count : {0u, 1u, 16u, 64u, 65u, 1000u}) {
    std::vector<TokenId> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 5);
    std::string bytes(reinterpret_cast<const char*>(&parent), sizeof(parent));
    bytes.append(reinterpret_cast<const char*>(tokens.data()), count * sizeof(TokenId));
    EXPECT_EQ(HashChain(parent, tokens), HashBytes(bytes)) << count;
  }
}

TEST(HashChain, DependsOnParentAndOrder) {
  const std::vector<TokenId> tokens = {1, 2, 3};
  const std::vector<TokenId> swapped = {2, 1, 3};
  std::set<Hash128> seen = {HashChain({}, tokens), HashChain({}, swapped),
                            HashChain({1, 0}, tokens), HashChain({0, 1}, tokens)};
  EXPECT_EQ(seen.size(), 4u);
}

TEST(Hash128, PrintsTheHighHalfFirst) {
  EXPECT_EQ((Hash128{.lo = 0xff, .hi = 0xab}.ToHex()), "00000000000000ab00000000000000ff");
}

}  // namespace
}  // namespace aisp
