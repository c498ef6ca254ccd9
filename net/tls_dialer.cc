#include "net/tls_dialer.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <array>

namespace aisp {
namespace {

// OpenSSL's text for its last failure on this thread.
std::string LastFailure() {
  const unsigned long code = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_clear_error();
  if (code == 0) return "";
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : fmt::format("OpenSSL error {:x}", code);
}

Error BadFile(const char* what, const std::string& path) {
  return {Code::kInvalidArgument,
          fmt::format("{} '{}' cannot be used: {}", what, path, LastFailure())};
}

Status Load(SSL_CTX* context, const TlsDialerOptions& o) {
  if (o.insecure) {
    SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
  } else {
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    if (o.ca_file.empty()) {
      SSL_CTX_set_default_verify_paths(context);
    } else if (SSL_CTX_load_verify_locations(context, o.ca_file.c_str(), nullptr) != 1) {
      return tl::unexpected(BadFile("the CA file", o.ca_file));
    }
  }
  if (o.cert_file.empty()) return {};
  if (SSL_CTX_use_certificate_chain_file(context, o.cert_file.c_str()) != 1) {
    return tl::unexpected(BadFile("the certificate", o.cert_file));
  }
  // Also checks that the key belongs to the certificate.
  if (SSL_CTX_use_PrivateKey_file(context, o.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return tl::unexpected(BadFile("the key", o.key_file));
  }
  return {};
}

bool IsAddress(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> address;
  return inet_pton(AF_INET, host.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, host.c_str(), address.data()) == 1;
}

}  // namespace

Result<std::shared_ptr<const TlsDialer>> TlsDialer::Create(const TlsDialerOptions& options) {
  ERR_clear_error();
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) return Internal("OpenSSL gives no context: " + LastFailure());
  std::shared_ptr<const TlsDialer> owner(new TlsDialer(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // HTTP frames its messages, so a missing close_notify cannot hide lost data.
  SSL_CTX_set_options(
      context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  AISP_RETURN_IF_ERROR(Load(context, options));
  return owner;
}

TlsDialer::~TlsDialer() { SSL_CTX_free(context_); }

ssl_st* TlsDialer::NewConnection(const std::string& host) const {
  SSL* ssl = SSL_new(context_);
  if (ssl != nullptr) SetTlsHost(ssl, host);
  return ssl;
}

void SetTlsHost(ssl_st* ssl, const std::string& host) {
  if (IsAddress(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
  } else {
    SSL_set_tlsext_host_name(ssl, host.c_str());
    SSL_set1_host(ssl, host.c_str());
  }
}

std::string TlsFailure(const ssl_st* ssl, const std::string& otherwise) {
  const long verified = SSL_get_verify_result(ssl);  // NOLINT(google-runtime-int): OpenSSL's type
  std::string reason = LastFailure();
  if (verified != X509_V_OK && SSL_get_verify_mode(ssl) != SSL_VERIFY_NONE) {
    return fmt::format("the server's certificate is refused: {}",
                       X509_verify_cert_error_string(verified));
  }
  return reason.empty() ? otherwise : reason;
}

}  // namespace aisp
