// TlsContext: certificate and key of a TLS server, read once. To change them, replace the process
// (a rolling restart loses no request). Immutable: any thread.
#pragma once

#include <memory>

#include "common/result.h"
#include "net/tls_options.h"

struct ssl_ctx_st;
struct ssl_st;

namespace aisp {

struct SslDeleter {
  void operator()(ssl_st* ssl) const;
};
using SslPtr = std::unique_ptr<ssl_st, SslDeleter>;

class TlsContext {
 public:
  // TLS 1.2 and 1.3. INVALID_ARGUMENT names the file and the problem: missing, not PEM, a key that
  // does not match the certificate, an expired certificate.
  static Result<std::shared_ptr<const TlsContext>> Create(const TlsServerOptions& options);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // The server's side of one connection on this non-blocking descriptor.
  SslPtr Accept(int fd) const;

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

// OpenSSL's text for its last failure on this thread.
std::string TlsErrorText();

}  // namespace aisp
