// The identity of a prompt prefix, the same in every process of a cluster.
//
// The root is 128 bits of SHA-256 over weights digest, KV dtype, adapter and scope (tenant + cache
// salt), so nobody can construct a scope with another's root. The hash of unit i (16 tokens) is
// XXH3-128(hash of unit i-1, its tokens). Collisions of that can be constructed, so it only finds a
// candidate: a prefix hit compares all tokens up to the root. Pure functions: any thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "common/hash.h"
#include "common/ids.h"

namespace aisp {

inline constexpr int32_t kHashUnitTokens = 16;

// `scope`: tenant and salt as combined by the router; requests with scope "" share prefixes.
Hash128 PrefixRoot(std::string_view weights_digest, std::string_view kv_dtype,
                   std::string_view adapter, std::string_view scope);

// Hashes of the whole units of `tokens`: floor(tokens.size() / 16) of them.
std::vector<Hash128> UnitHashes(const Hash128& root, std::span<const TokenId> tokens);

}  // namespace aisp
