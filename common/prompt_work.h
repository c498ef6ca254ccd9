// PromptWork: how much of prompts is to be computed. Attention reads, for each position, all that
// come before it and itself, so the tokens alone do not say what they cost. Plain values.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace aisp {

struct PromptWork {
  int64_t tokens = 0;
  int64_t context = 0;  // positions that they read, in sum

  // `count` tokens behind `begin` others whose KV is there.
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

// How much of a prompt a step takes that draws tokens for streams as well, so that they keep their
// time for a token.
struct PromptPace {
  int32_t rows = 0;       // that read nothing but themselves; 0: as many as the step takes
  int32_t positions = 0;  // read ones that cost as much as a row; 0: reading costs nothing

  bool any() const { return rows > 0; }
  // The part of a step that `count` rows behind `begin` others fill: 1 is all of it.
  double PartOf(int64_t begin, int64_t count) const {
    return any() ? Worth(PromptWork::Of(begin, count)) / rows : 0;
  }
  // Of `most` rows behind `begin` others those that fit into `part` of a step.
  int32_t RowsWithin(double part, int64_t begin, int32_t most) const {
    if (!any() || PartOf(begin, most) <= part) return most;
    const double room = std::max(0.0, part * rows);
    if (positions <= 0) return static_cast<int32_t>(room);
    // n + (n begin + n n / 2) / positions = room
    const double linear = static_cast<double>(positions) + static_cast<double>(begin);
    return std::min(
        most, static_cast<int32_t>(std::sqrt(linear * linear + 2 * room * positions) - linear));
  }
  // Rows that would cost as much as `work`.
  double Worth(const PromptWork& work) const {
    const auto count = static_cast<double>(work.tokens);
    return positions > 0 ? count + static_cast<double>(work.context) / positions : count;
  }
};

}  // namespace aisp
