#include "net/tls_context.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <array>
#include <filesystem>

namespace aisp {
namespace {

constexpr unsigned char kSessionContext[] = "aisp";

Status CheckFile(const char* setting, const std::string& path) {
  std::error_code error;
  if (path.empty()) return InvalidArgument(fmt::format("{} is empty; TLS needs it", setting));
  if (std::filesystem::is_regular_file(path, error)) return {};
  return InvalidArgument(fmt::format("{}: there is no file '{}'", setting, path));
}

Error Trouble(const char* setting, const std::string& path) {
  return {Code::kInvalidArgument, fmt::format("{} '{}': {}", setting, path, TlsErrorText())};
}

// Selects HTTP/1.1 by ALPN; a client that offers only other protocols continues without ALPN.
int SelectProtocol(SSL* /*ssl*/, const unsigned char** out, unsigned char* out_length,
                   const unsigned char* in, unsigned in_length, void* /*arg*/) {
  static constexpr unsigned char kKnown[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  const int found =
      SSL_select_next_proto(&chosen, out_length, kKnown, sizeof(kKnown) - 1, in, in_length);
  if (found != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_NOACK;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

Status CheckDates(SSL_CTX* context, const std::string& path) {
  const X509* certificate = SSL_CTX_get0_certificate(context);
  if (certificate == nullptr) return {};
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    return InvalidArgument(
        fmt::format("http.tls_cert_file '{}': the certificate has expired; renew it", path));
  }
  return {};
}

Status Load(SSL_CTX* context, const TlsServerOptions& o) {
  AISP_RETURN_IF_ERROR(CheckFile("http.tls_cert_file", o.cert_file));
  AISP_RETURN_IF_ERROR(CheckFile("http.tls_key_file", o.key_file));
  if (SSL_CTX_use_certificate_chain_file(context, o.cert_file.c_str()) != 1)
    return tl::unexpected(Trouble("http.tls_cert_file", o.cert_file));
  // Also checks that the key belongs to the certificate.
  if (SSL_CTX_use_PrivateKey_file(context, o.key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    return tl::unexpected(Trouble("http.tls_key_file", o.key_file));
  AISP_RETURN_IF_ERROR(CheckDates(context, o.cert_file));
  if (o.client_ca_file.empty()) return {};
  AISP_RETURN_IF_ERROR(CheckFile("http.tls_client_ca_file", o.client_ca_file));
  if (SSL_CTX_load_verify_locations(context, o.client_ca_file.c_str(), nullptr) != 1)
    return tl::unexpected(Trouble("http.tls_client_ca_file", o.client_ca_file));
  SSL_CTX_set_client_CA_list(context, SSL_load_client_CA_file(o.client_ca_file.c_str()));
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return {};
}

}  // namespace

void SslDeleter::operator()(ssl_st* ssl) const { SSL_free(ssl); }

std::string TlsErrorText() {
  const unsigned long code = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's type
  ERR_clear_error();
  if (code == 0) return "the peer ended the connection";
  std::array<char, 256> text{};
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

Result<std::shared_ptr<const TlsContext>> TlsContext::Create(const TlsServerOptions& options) {
  SSL_CTX* context = SSL_CTX_new(TLS_server_method());
  if (context == nullptr) return Internal("OpenSSL gives no context: " + TlsErrorText());
  std::shared_ptr<const TlsContext> owner(new TlsContext(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE |
                                   SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
  // Bytes that were not accepted may be offered again at another address.
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_session_id_context(context, kSessionContext, sizeof(kSessionContext) - 1);
  SSL_CTX_set_alpn_select_cb(context, SelectProtocol, nullptr);
  AISP_RETURN_IF_ERROR(Load(context, options));
  return owner;
}

TlsContext::~TlsContext() { SSL_CTX_free(context_); }

SslPtr TlsContext::Accept(int fd) const {
  SslPtr ssl(SSL_new(context_));
  if (ssl == nullptr) return ssl;
  SSL_set_fd(ssl.get(), fd);
  SSL_set_accept_state(ssl.get());
  return ssl;
}

}  // namespace aisp
