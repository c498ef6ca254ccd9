#include "hub/content_hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "common/check.h"
#include "common/strings.h"
#include "hub/repo.h"

namespace aisp {

struct ContentHash::Impl {
  Impl() : context(EVP_MD_CTX_new()) {}
  ~Impl() { EVP_MD_CTX_free(context); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  EVP_MD_CTX* const context;
};

ContentHash::ContentHash(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ContentHash::ContentHash(ContentHash&&) noexcept = default;
ContentHash& ContentHash::operator=(ContentHash&&) noexcept = default;
ContentHash::~ContentHash() = default;

Result<ContentHash> ContentHash::For(std::string_view name, uint64_t size) {
  const bool lfs = IsHex(name, 64);
  if (!lfs && !IsHex(name, 40)) {
    return InvalidArgument(fmt::format(
        "'{}' is neither a SHA-256 nor a Git SHA-1, so the content could not be checked",
        Excerpt(name)));
  }
  auto impl = std::make_unique<Impl>();
  const EVP_MD* digest = lfs ? EVP_sha256() : EVP_sha1();
  if (impl->context == nullptr || EVP_DigestInit_ex(impl->context, digest, nullptr) != 1)
    return Internal("OpenSSL offers no SHA-1 or SHA-256 here");
  ContentHash hash(std::move(impl));
  if (!lfs) {
    const std::string begin = fmt::format("blob {}", size);
    hash.Update({begin.c_str(), begin.size() + 1});  // including its zero byte
  }
  return hash;
}

void ContentHash::Update(std::string_view bytes) {
  AISP_CHECK(EVP_DigestUpdate(impl_->context, bytes.data(), bytes.size()) == 1);
}

std::string ContentHash::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  AISP_CHECK(EVP_DigestFinal_ex(impl_->context, digest.data(), &length) == 1);
  std::string hex;
  for (unsigned int i = 0; i < length; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace aisp
