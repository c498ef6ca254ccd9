// TokenChains: finds where the last tokens of a text occurred before, in it or in another one.
//
// Positions with equal grams (of one, two and four tokens) are linked, newest first, as compressors
// of the LZ77 family do it: a token costs O(1) to add, sixteen bytes to keep. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/ids.h"

namespace aisp {

class TokenChains {
 public:
  // A place where the last `length` tokens stand; what followed them begins at `next`.
  struct Match {
    int32_t next = 0;
    int32_t length = 0;
  };
  static constexpr int32_t kMostMatches = 48;
  static constexpr int32_t kLongestMatch = 64;

  void Append(std::span<const TokenId> tokens);
  // No match reaches over it.
  void AppendBreak() { Append(std::array<TokenId, 1>{kBreak}); }
  // The newest places where the end of `suffix` stands and something follows, at most
  // kMostMatches of them; those that share four tokens or more, else two or more, else one.
  void Find(std::span<const TokenId> suffix, std::vector<Match>* matches) const;

  std::span<const TokenId> tokens() const { return tokens_; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

  static constexpr TokenId kBreak = -1;

 private:
  static constexpr std::array<int32_t, 3> kGrams{4, 2, 1};
  static uint64_t KeyOf(std::span<const TokenId> gram);

  std::vector<TokenId> tokens_;
  // For each length of grams: the newest end of a gram, and of each end the one before it.
  std::array<std::unordered_map<uint64_t, int32_t>, kGrams.size()> heads_;
  std::array<std::vector<int32_t>, kGrams.size()> before_;
};

}  // namespace aisp
