// FP8 numbers as used in the KV pool: e4m3 without infinities, converted with saturation like on
// NVIDIA GPUs. Pure functions.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace aisp {

// To nearest, ties to even; values beyond the largest number (448) become that.
constexpr uint8_t FloatToFp8(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 24 & 0x80u;
  const uint32_t size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) return static_cast<uint8_t>(sign | 0x7fu);  // NaN
  if (size >= 0x43e00000u) return static_cast<uint8_t>(sign | 0x7eu);
  if (size < 0x3c800000u) {
    // Below 2^-6 the steps are 2^-9, like those of floats at 2^14: the addition rounds.
    const float rounded = std::bit_cast<float>(size) + 16384.0f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x46800000u));
  }
  const uint32_t rounded = size + 0x7ffffu + (size >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

constexpr float Fp8ToFloat(uint8_t x) {
  const uint32_t exponent = x >> 3 & 15u;
  const auto mantissa = static_cast<float>(x & 7u);
  if ((x & 0x7fu) == 0x7fu) return std::bit_cast<float>((x & 0x80u) << 24 | 0x7fc00000u);
  const float size = exponent == 0
                         ? mantissa * 0x1p-9f
                         : std::bit_cast<float>((exponent + 120u) << 23) * (1.0f + mantissa / 8.0f);
  return (x & 0x80u) != 0 ? -size : size;
}

constexpr std::array<float, 256> MakeFp8Values() {
  std::array<float, 256> values{};
  for (uint32_t i = 0; i < values.size(); ++i) values[i] = Fp8ToFloat(static_cast<uint8_t>(i));
  return values;
}
// Values by code.
inline constexpr std::array<float, 256> kFp8Values = MakeFp8Values();

}  // namespace aisp
