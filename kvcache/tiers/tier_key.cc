#include "kvcache/tiers/tier_key.h"

#include <openssl/evp.h>

#include <array>
#include <cstring>

#include "common/check.h"

namespace aisp {

// Fetched once: the lookup costs more than hashing a block.
struct TierHasher::State {
  EVP_MD* sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  State() { AISP_CHECK_MSG(sha256 != nullptr && context != nullptr, "no SHA-256"); }
  ~State() {
    EVP_MD_CTX_free(context);
    EVP_MD_free(sha256);
  }
};

TierHasher::TierHasher() : state_(std::make_unique<State>()) {}
TierHasher::~TierHasher() = default;

Hash128 TierHasher::Next(const Hash128& before, std::span<const TokenId> block) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  const bool done = EVP_DigestInit_ex2(state_->context, state_->sha256, nullptr) == 1 &&
                    EVP_DigestUpdate(state_->context, &before, sizeof(before)) == 1 &&
                    EVP_DigestUpdate(state_->context, block.data(), block.size_bytes()) == 1 &&
                    EVP_DigestFinal_ex(state_->context, digest.data(), nullptr) == 1;
  AISP_CHECK_MSG(done, "SHA-256 failed");
  Hash128 key;
  std::memcpy(&key, digest.data(), sizeof(key));
  return key;
}

void TierHasher::Extend(const Hash128& root, std::span<const TokenId> tokens, int32_t block_tokens,
                        std::vector<Hash128>* keys) {
  const auto block = static_cast<size_t>(block_tokens);
  for (size_t i = keys->size(); (i + 1) * block <= tokens.size(); ++i)
    keys->push_back(Next(i == 0 ? root : keys->back(), tokens.subspan(i * block, block)));
}

}  // namespace aisp
