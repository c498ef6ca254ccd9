// TokenChains: finds earlier occurrences of a text's last tokens, in it or in another text.
//
// Positions with equal grams (of one, two and four tokens) are linked, newest first, as in
// compressors of the LZ77 family. Adding a token costs O(1) time and sixteen bytes. One thread.
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
  // An occurrence of the last `length` tokens; `next`: position after it.
  struct Match {
    int32_t next = 0;
    int32_t length = 0;
  };
  static constexpr int32_t kMostMatches = 48;
  static constexpr int32_t kLongestMatch = 64;

  void Append(std::span<const TokenId> tokens);
  // No match extends across a break.
  void AppendBreak() { Append(std::array<TokenId, 1>{kBreak}); }
  // The newest occurrences of the end of `suffix` that have a successor, at most kMostMatches, with
  // matches of at least four tokens; if there are none, two tokens; else one.
  void Find(std::span<const TokenId> suffix, std::vector<Match>* matches) const;

  std::span<const TokenId> tokens() const { return tokens_; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

  static constexpr TokenId kBreak = -1;

 private:
  static constexpr std::array<int32_t, 3> kGrams{4, 2, 1};
  static uint64_t KeyOf(std::span<const TokenId> gram);

  std::vector<TokenId> tokens_;
  // For each gram length: the newest end of a gram, and for each end the previous one.
  std::array<std::unordered_map<uint64_t, int32_t>, kGrams.size()> heads_;
  std::array<std::vector<int32_t>, kGrams.size()> before_;
};

}  // namespace aisp
