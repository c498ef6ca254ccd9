// How attention and the layers around it hand one token's rows to each other without waiting for
// each other's end (linear/one_token.cuh has the layers, attention/fused_one.cu the attention).
//
// A row is left as words: pairs of bf16, each stored in one piece, in places that hold
// kTokenNothing until then; whoever reads polls. There are two sets of places. Launches of layers
// take them in turn; each counts itself in `launches` (an entry for each CTA, all alike when a
// launch after it begins) before it lets its successor start, and has emptied the other set by
// then. So when attention starts after n launches of layers, the last one's outputs come in set (n
// - 1) % 2, and set n % 2, the next one's, is empty.
//
// What makes this right, without a fence between kernels: a kernel that leaves words lets its
// successor start only when all that it leaves besides words is visible and the kernel before it is
// complete; and each kernel is complete only after the one before it. So whoever has started sees
// all that was left before, but for words of the kernel right in front, for which it polls.
//
// Pure data; any thread.
#pragma once

#include <cstdint>

namespace aisp::cuda {

// No output has these bits: what arithmetic and conversions make of a NaN is 0x7fffffff or 0x7fff.
constexpr uint32_t kTokenNothing = 0xffffffffu;

// A set: attention's row, the last layer's outputs, what the layers of one launch leave each other.
constexpr int kTokenEdgeWords = 8 << 10;  // of the first two each
constexpr int kTokenStepWords = 32 << 10;
constexpr int kTokenInputAt = 0;
constexpr int kTokenOutputAt = kTokenEdgeWords;
constexpr int kTokenStepsAt = 2 * kTokenEdgeWords;
constexpr int kTokenSetWords = 2 * kTokenEdgeWords + kTokenStepWords;

// Given to attention whose q, k and v come as words and whose row is to be left as words too. Null:
// neither.
struct TokenWords {
  uint32_t* sets = nullptr;            // [2][kTokenSetWords]
  const uint32_t* launches = nullptr;  // entry 0
};

}  // namespace aisp::cuda
