// How attention and the layers around it hand one token's rows to each other without waiting for
// each other's end (linear/one_token.cuh has the layers, attention/fused_one.cu the attention).
//
// A row is published in 32-bit words: pairs of bf16, each stored in one access, in slots that hold
// the empty marker kTokenEmpty until then; the consumer polls the slot itself. There are two sets
// of slots, and launches of layers use them in turn: each counts itself in `launches` (an entry for
// each CTA) and resets the other set to the marker before it lets its successor start. So when
// attention starts after n launches of layers, the last one's outputs come in set (n - 1) % 2, and
// set n % 2, the next one's, is empty.
//
// No fence between kernels is needed: a kernel that publishes lets its successor start only when
// all else that it writes is visible and the kernel before it is complete, and each kernel is
// complete only after the one before it. So a kernel that has started sees everything written
// before, but for what the kernel right in front still publishes, which it polls.
//
// Pure data; any thread.
#pragma once

#include <cstdint>

namespace aisp::cuda {

// No output has these bits: what arithmetic and conversions make of a NaN is 0x7fffffff or 0x7fff.
constexpr uint32_t kTokenEmpty = 0xffffffffu;

// A set: attention's row, the last layer's outputs, what the layers of one launch publish for each
// other.
constexpr int kTokenEdgeSlots = 8 << 10;  // of the first two each
constexpr int kTokenStepSlots = 32 << 10;
constexpr int kTokenInputAt = 0;
constexpr int kTokenOutputAt = kTokenEdgeSlots;
constexpr int kTokenStepsAt = 2 * kTokenEdgeSlots;
constexpr int kTokenSetSlots = 2 * kTokenEdgeSlots + kTokenStepSlots;

// A set of the layers of a few tokens, which publish for each other only (linear/few_tokens.cuh).
constexpr int kFewTokensSetSlots = 192 << 10;

// For attention that polls q, k and v in these slots and publishes its row in them. Null:
// neither.
struct TokenSlots {
  uint32_t* sets = nullptr;            // [2][kTokenSetSlots]
  const uint32_t* launches = nullptr;  // entry 0
};

}  // namespace aisp::cuda
