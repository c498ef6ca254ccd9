// PromptWork: how much prefill work is to be done. Attention reads all earlier positions for each
// position, so the token count alone does not give the cost. Plain values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace aisp {

struct PromptWork {
  int64_t tokens = 0;
  int64_t context = 0;  // sum over the tokens of the positions that each reads, itself included

  // The work of prefilling `count` tokens after `begin` tokens whose KV exists.
  static PromptWork Of(int64_t begin, int64_t count) {
    count = std::max<int64_t>(count, 0);
    return {count, count * begin + count * (count + 1) / 2};
  }
  PromptWork& operator+=(const PromptWork& other) {
    tokens += other.tokens;
    context += other.context;
    return *this;
  }
  PromptWork& operator-=(const PromptWork& other) {
    tokens -= other.tokens;
    context -= other.context;
    return *this;
  }
};

// Limits the prefill share of a step that also decodes, so that decoding requests keep their time
// per token.
struct PromptPace {
  int32_t rows = 0;       // rows without context that fill the share; 0: no limit
  int32_t positions = 0;  // attention reads that cost as much as one row; 0: reads cost nothing

  bool any() const { return rows > 0; }
  // The fraction of the share that `count` rows after `begin` tokens use: 1 is all of it.
  double PartOf(int64_t begin, int64_t count) const {
    return any() ? Worth(PromptWork::Of(begin, count)) / rows : 0;
  }
  // How many of `most` rows after `begin` tokens fit into the fraction `part` of the share.
  int32_t RowsWithin(double part, int64_t begin, int32_t most) const {
    if (!any() || PartOf(begin, most) <= part) return most;
    const double room = std::max(0.0, part * rows);
    if (positions <= 0) return static_cast<int32_t>(room);
    // Solves n + (n begin + n n / 2) / positions = room for n.
    const double linear = static_cast<double>(positions) + static_cast<double>(begin);
    return std::min(
        most, static_cast<int32_t>(std::sqrt(linear * linear + 2 * room * positions) - linear));
  }
  // The number of context-free rows that cost as much as `work`.
  double Worth(const PromptWork& work) const {
    const auto count = static_cast<double>(work.tokens);
    return positions > 0 ? count + static_cast<double>(work.context) / positions : count;
  }
};

}  // namespace aisp
