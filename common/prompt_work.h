// PromptWork: how much of prompts is to be computed. Attention reads, for each position, all that
// come before it and itself, so the tokens alone do not say what they cost. Plain values.
#pragma once

#include <algorithm>
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

}  // namespace aisp
