// The identity of a prefix, the same in every process of a cluster.
//
// The root is 128 bits of SHA-256 over weights digest, KV dtype, adapter and scope (tenant + cache
// salt): nobody finds a scope with another's root. Unit i's hash (16 tokens) is XXH3-128(hash of
// unit i-1, its tokens), which anybody can make collide: it only finds a candidate, and a hit
// compares tokens and everything before them up to the root. Pure functions: any thread.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "common/hash.h"
#include "common/ids.h"

namespace aisp {

inline constexpr int32_t kHashUnitTokens = 16;

// `scope` is tenant and salt as the router combined them; "" shares with everybody who also has "".
Hash128 PrefixRoot(std::string_view weights_digest, std::string_view kv_dtype,
                   std::string_view adapter, std::string_view scope);

// Hashes of the whole units of `tokens`: floor(tokens.size() / 16) of them.
std::vector<Hash128> UnitHashes(const Hash128& root, std::span<const TokenId> tokens);

}  // namespace aisp
