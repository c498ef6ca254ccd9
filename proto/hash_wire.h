// 128-bit hashes on the wire: 16 bytes, little-endian, the low half first. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/hash.h"

namespace aisp {

inline std::string HashToWire(const Hash128& hash) {
  std::string bytes(16, '\0');
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<char>(hash.lo >> (8 * i));
    bytes[8 + i] = static_cast<char>(hash.hi >> (8 * i));
  }
  return bytes;
}

// nullopt unless `bytes` has 16 bytes.
inline std::optional<Hash128> HashFromWire(std::string_view bytes) {
  if (bytes.size() != 16) return std::nullopt;
  Hash128 hash;
  for (size_t i = 8; i-- > 0;) {
    hash.lo = hash.lo << 8 | static_cast<unsigned char>(bytes[i]);
    hash.hi = hash.hi << 8 | static_cast<unsigned char>(bytes[8 + i]);
  }
  return hash;
}

}  // namespace aisp
