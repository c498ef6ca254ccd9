#include "common/prefix_hash.h"

#include <openssl/sha.h>

#include <array>
#include <cstring>
#include <string>

namespace aisp {

Hash128 PrefixRoot(std::string_view weights_digest, std::string_view kv_dtype,
                   std::string_view adapter, std::string_view scope) {
  // Each field is preceded by its length, so that no two lists of fields give the same bytes.
  std::string bytes;
  for (const std::string_view field : {weights_digest, kv_dtype, adapter, scope}) {
    const uint64_t length = field.size();
    bytes.append(reinterpret_cast<const char*>(&length), sizeof(length));
    bytes.append(field);
  }
  // Clients choose parts of the scope and could construct XXH3 collisions, hence SHA-256.
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.data());
  Hash128 root;
  std::memcpy(&root, digest.data(), sizeof(root));
  return root;
}

std::vector<Hash128> UnitHashes(const Hash128& root, std::span<const TokenId> tokens) {
  std::vector<Hash128> hashes(tokens.size() / kHashUnitTokens);
  Hash128 parent = root;
  for (Hash128& hash : hashes) {
    hash = HashChain(parent, tokens.first(kHashUnitTokens));
    tokens = tokens.subspan(kHashUnitTokens);
    parent = hash;
  }
  return hashes;
}

}  // namespace aisp
