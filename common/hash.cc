#include "common/hash.h"

#include <bit>
#include <cstring>

#include <fmt/format.h>
#include <xxhash.h>

#include "common/check.h"

namespace aisp {

// The chain hashes tokens and parent as they lie in memory; every platform that we build for is
// little-endian.
static_assert(std::endian::native == std::endian::little);
static_assert(sizeof(Hash128) == 16);

namespace {

Hash128 FromXxh(XXH128_hash_t h) { return Hash128{.lo = h.low64, .hi = h.high64}; }

// The longest run that is hashed in one call, from a buffer on the stack: one hash unit of the
// prefix index is 16.
constexpr size_t kMaxInlineTokens = 64;

}  // namespace

std::string Hash128::ToHex() const { return fmt::format("{:016x}{:016x}", hi, lo); }

Hash128 HashBytes(std::span<const std::byte> bytes) {
  return FromXxh(XXH3_128bits(bytes.data(), bytes.size()));
}

Hash128 HashBytes(std::string_view bytes) {
  return FromXxh(XXH3_128bits(bytes.data(), bytes.size()));
}

Hash128 HashChain(const Hash128& parent, std::span<const TokenId> tokens) {
  if (tokens.size() <= kMaxInlineTokens) {
    std::byte buffer[sizeof(Hash128) + kMaxInlineTokens * sizeof(TokenId)];
    std::memcpy(buffer, &parent, sizeof(parent));
    if (!tokens.empty()) std::memcpy(buffer + sizeof(parent), tokens.data(), tokens.size_bytes());
    return FromXxh(XXH3_128bits(buffer, sizeof(parent) + tokens.size_bytes()));
  }
  XXH3_state_t* state = XXH3_createState();
  AISP_CHECK(state != nullptr);
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, &parent, sizeof(parent));
  XXH3_128bits_update(state, tokens.data(), tokens.size_bytes());
  const Hash128 hash = FromXxh(XXH3_128bits_digest(state));
  XXH3_freeState(state);
  return hash;
}

uint64_t Hash64(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace aisp
