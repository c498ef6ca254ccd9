// How attention and the adjacent layers pass one token's rows to each other without waiting for
// each other's end (layers: linear/one_token.cuh, attention: attention/fused_one.cu).
//
// A row is published in 32-bit words (pairs of bf16, one store each) in slots that hold the empty
// marker kTokenEmpty before; the consumer polls the slot itself. There are two sets of slots, used
// alternately by launches of layers: each increments `launches` (one entry per CTA) and resets the
// other set before it lets its successor start. So when attention starts after n launches of
// layers, the last one's outputs are in set (n - 1) % 2, and set n % 2, for the next one, is empty.
//
// No fence between kernels is needed. A publishing kernel lets its successor start only when all
// its other writes are visible and the previous kernel is complete, and each kernel completes only
// after the previous one. So a running kernel sees everything written before, except what its
// direct predecessor still publishes, which it polls.
//
// Pure data; any thread.
#pragma once

#include <cstdint>

namespace aisp::cuda {

// No output has these bits: arithmetic and conversions produce the NaNs 0x7fffffff or 0x7fff.
constexpr uint32_t kTokenEmpty = 0xffffffffu;

// A set: attention's row, the last layer's outputs, and what the layers of a launch publish to each
// other.
constexpr int kTokenEdgeSlots = 8 << 10;  // for each of the first two
constexpr int kTokenStepSlots = 32 << 10;
constexpr int kTokenInputAt = 0;
constexpr int kTokenOutputAt = kTokenEdgeSlots;
constexpr int kTokenStepsAt = 2 * kTokenEdgeSlots;
constexpr int kTokenSetSlots = 2 * kTokenEdgeSlots + kTokenStepSlots;

// A set for layers of a few tokens, which publish only to each other (linear/few_tokens.cuh).
constexpr int kFewTokensSetSlots = 192 << 10;

// For attention that polls q, k and v in these slots and publishes its row in them. Null: neither.
struct TokenSlots {
  uint32_t* sets = nullptr;            // [2][kTokenSetSlots]
  const uint32_t* launches = nullptr;  // entry 0
};

}  // namespace aisp::cuda
