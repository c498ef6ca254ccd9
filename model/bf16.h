// Conversion between f32 and bf16 on the host, to nearest, ties to even.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace aisp {

inline void RoundToBf16(std::span<const float> from, uint16_t* to) {
  for (size_t i = 0; i < from.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(from[i]);
    to[i] = static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
}

inline void WidenBf16(std::span<const uint16_t> from, float* to) {
  for (size_t i = 0; i < from.size(); ++i)
    to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
}

}  // namespace aisp
