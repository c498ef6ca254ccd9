// PromptWork: how much prefill work is to be done. Attention reads all earlier positions for each
// position, so the token count alone does not give the cost. Plain values.
#pragma once

#include <algorithm>
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

}  // namespace aisp
