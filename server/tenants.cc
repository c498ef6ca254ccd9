#include "server/tenants.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <fstream>

#include "common/strings.h"

namespace aisp {
namespace {

constexpr std::string_view kUnnamed = "key-";
constexpr size_t kDigestDigits = 16;
constexpr size_t kMaxNameBytes = 64;

bool IsNameChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.';
}
bool IsKeyChar(char c) { return c > 0x20 && c < 0x7F; }

std::string Hex(const unsigned char* bytes, size_t digits) {
  std::string out;
  for (size_t i = 0; out.size() < digits; ++i) out += fmt::format("{:02x}", bytes[i]);
  return out;
}

}  // namespace

Tenants::Digest Tenants::DigestOf(std::string_view key) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

Result<std::unique_ptr<Tenants>> Tenants::Load(const Config& config) {
  auto out = std::make_unique<Tenants>();
  out->max_inflight_ = config.http.max_inflight_per_key;
  for (size_t i = 0; i < config.http.api_keys.size(); ++i) {
    AISP_RETURN_IF_ERROR(
        out->Add(config.http.api_keys[i], fmt::format("http.api_keys, entry {}", i + 1)));
  }
  const std::string& path = config.http.api_keys_file;
  if (path.empty()) return out;
  std::ifstream file(path);
  if (!file) return NotFound(fmt::format("cannot read http.api_keys_file '{}'", path));
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string_view entry = Trim(line);
    if (entry.empty() || entry.front() == '#') continue;
    AISP_RETURN_IF_ERROR(out->Add(entry, fmt::format("{}:{}", path, number)));
  }
  if (file.bad()) return Unavailable(fmt::format("reading http.api_keys_file '{}' failed", path));
  // A file that was meant to close the door and holds no key must not leave it open.
  if (out->keys_.empty()) {
    return InvalidArgument(fmt::format("http.api_keys_file '{}' holds no key", path));
  }
  return out;
}

Status Tenants::Add(std::string_view entry, const std::string& where) {
  const size_t colon = entry.find(':');
  const bool named = colon != std::string_view::npos;
  const std::string_view name = named ? entry.substr(0, colon) : "";
  const std::string_view key = named ? entry.substr(colon + 1) : entry;
  if (named && (name.empty() || name.size() > kMaxNameBytes || name.starts_with(kUnnamed) ||
                !std::all_of(name.begin(), name.end(), IsNameChar))) {
    return InvalidArgument(fmt::format(
        "{}: the name before the ':' wants 1 to {} letters, digits, '.', '_' or '-', and "
        "not '{}' at its start",
        where, kMaxNameBytes, kUnnamed));
  }
  if (key.empty() || !std::all_of(key.begin(), key.end(), IsKeyChar)) {
    return InvalidArgument(where + ": a key is one or more visible ASCII characters");
  }
  Key added{DigestOf(key), std::string(name)};
  if (!named) added.tenant = std::string(kUnnamed) + Hex(added.digest.data(), kDigestDigits);
  for (const Key& known : keys_) {
    if (known.digest == added.digest) {
      return InvalidArgument(
          fmt::format("{}: this key stands there twice (tenant '{}')", where, known.tenant));
    }
  }
  inflight_.try_emplace(added.tenant, 0);
  keys_.push_back(std::move(added));
  return {};
}

ApiResult<std::string> Tenants::Authenticate(std::string_view authorization) const {
  if (keys_.empty()) return std::string();
  constexpr std::string_view kScheme = "bearer ";
  const auto refuse = [](std::string message) {
    return tl::unexpected(
        ApiError(Code::kUnauthenticated, std::move(message), "", "invalid_api_key"));
  };
  if (authorization.empty()) {
    return refuse("no API key was sent; send the header \"Authorization: Bearer YOUR_KEY\"");
  }
  if (authorization.size() < kScheme.size() ||
      !EqualsIgnoreCaseAscii(authorization.substr(0, kScheme.size()), kScheme)) {
    return refuse("the Authorization header must be \"Bearer YOUR_KEY\"");
  }
  const Digest given = DigestOf(Trim(authorization.substr(kScheme.size())));
  const Key* found = nullptr;
  for (const Key& key : keys_) {
    if (CRYPTO_memcmp(given.data(), key.digest.data(), given.size()) == 0) found = &key;
  }
  if (found == nullptr) return refuse("the API key is not known here; ask the operator for one");
  return found->tenant;
}

ApiResult<Tenants::Slot> Tenants::Enter(const std::string& tenant) {
  int64_t& count = inflight_[tenant];
  if (max_inflight_ > 0 && !tenant.empty() && count >= max_inflight_) {
    return tl::unexpected(
        ApiError(Code::kResourceExhausted,
                 fmt::format("this API key has {} requests in flight, the limit is {}; retry later",
                             count, max_inflight_)));
  }
  return Slot(&count);
}

std::string CacheScope(std::string_view tenant, std::string_view salt) {
  if (tenant.empty() && salt.empty()) return "";
  // The length says where the tenant ends.
  return fmt::format("{}:{}{}", tenant.size(), tenant, salt);
}

}  // namespace aisp
