#include "net/link_security.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <array>
#include <fstream>
#include <sstream>

#include "common/strings.h"

namespace aisp {
namespace {

Result<std::string> ReadFile(std::string_view setting, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (in) text << in.rdbuf();
  if (!in || text.str().empty())
    return InvalidArgument(fmt::format("{}: '{}' cannot be read or is empty", setting, path));
  return text.str();
}

}  // namespace

Result<std::string> ReadPem(std::string_view setting, const std::string& path) {
  if (path.empty()) return InvalidArgument(fmt::format("{} is empty; TLS needs it", setting));
  AISP_ASSIGN_OR_RETURN(std::string text, ReadFile(setting, path));
  if (text.find("-----BEGIN ") == std::string::npos)
    return InvalidArgument(fmt::format("{}: '{}' is no PEM file", setting, path));
  return text;
}

bool SameSecret(std::string_view a, std::string_view b) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> x{}, y{};
  SHA256(reinterpret_cast<const unsigned char*>(a.data()), a.size(), x.data());
  SHA256(reinterpret_cast<const unsigned char*>(b.data()), b.size(), y.data());
  return CRYPTO_memcmp(x.data(), y.data(), x.size()) == 0;
}

Result<std::shared_ptr<const LinkSecurity>> LinkSecurity::Load(const ClusterOptions& o) {
  constexpr size_t kShortestToken = 16;
  const bool any_tls = !o.cert_file.empty() || !o.key_file.empty() || !o.ca_file.empty();
  if (o.token_file.empty() && !any_tls) return nullptr;
  auto out = std::make_shared<LinkSecurity>();
  out->peer_name = o.peer_name;
  if (any_tls) {
    AISP_ASSIGN_OR_RETURN(out->cert_pem, ReadPem("cluster.tls_cert_file", o.cert_file));
    AISP_ASSIGN_OR_RETURN(out->key_pem, ReadPem("cluster.tls_key_file", o.key_file));
    AISP_ASSIGN_OR_RETURN(out->ca_pem, ReadPem("cluster.tls_ca_file", o.ca_file));
  }
  if (!o.token_file.empty()) {
    AISP_ASSIGN_OR_RETURN(const std::string text, ReadFile("cluster.token_file", o.token_file));
    out->token = std::string(Trim(text.substr(0, text.find('\n'))));
    if (out->token.size() < kShortestToken) {
      return InvalidArgument(fmt::format(
          "cluster.token_file '{}': the token in its first line has {} characters; give "
          "it {} at least",
          o.token_file, out->token.size(), kShortestToken));
    }
  }
  return out;
}

}  // namespace aisp
