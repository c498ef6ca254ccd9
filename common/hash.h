// 128-bit hashes for identity across processes: prompt prefixes, weights, templates. XXH3-128
// (xxHash 0.8), whose values are the same on every machine. It is not a cryptographic hash: a hit
// that matters compares what was hashed. Pure functions: any thread.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "common/ids.h"

namespace aisp {

struct Hash128 {
  uint64_t lo = 0;
  uint64_t hi = 0;

  friend constexpr auto operator<=>(const Hash128&, const Hash128&) = default;

  // 32 lower-case hexadecimal digits, high half first.
  std::string ToHex() const;
};

Hash128 HashBytes(std::span<const std::byte> bytes);
Hash128 HashBytes(std::string_view bytes);

// The hash of `tokens` that follow a prefix with hash `parent`: XXH3-128(parent.lo, parent.hi,
// tokens), little-endian. Chained over the units of a prompt, it identifies a whole prefix.
Hash128 HashChain(const Hash128& parent, std::span<const TokenId> tokens);

// A fast 64-bit hash for tables inside one process.
uint64_t Hash64(std::string_view bytes);
// XXH3-64 with a seed, the same on every machine: a checksum for copied data.
uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace aisp

template <>
struct std::hash<aisp::Hash128> {
  // The low half is already uniform.
  size_t operator()(const aisp::Hash128& h) const noexcept { return static_cast<size_t>(h.lo); }
};
