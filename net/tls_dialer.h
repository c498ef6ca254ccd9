// TlsDialer: the client side of https: trusted CAs and an optional client certificate. Read once
// from files. Immutable: any thread.
#pragma once

#include <memory>
#include <string>

#include "common/result.h"

struct ssl_ctx_st;
struct ssl_st;

namespace aisp {

struct TlsDialerOptions {
  std::string ca_file;    // PEM; "": the system's
  std::string cert_file;  // PEM client certificate; "": none
  std::string key_file;   // PEM
  bool insecure = false;  // accept any certificate and name
};

class TlsDialer {
 public:
  // TLS 1.2 and 1.3. INVALID_ARGUMENT names the file and the problem.
  static Result<std::shared_ptr<const TlsDialer>> Create(const TlsDialerOptions& options);
  ~TlsDialer();
  TlsDialer(const TlsDialer&) = delete;
  TlsDialer& operator=(const TlsDialer&) = delete;

  // A connection to `host`, whose name or address the certificate must match. The caller frees it.
  ssl_st* NewConnection(const std::string& host) const;
  ssl_ctx_st* native() const { return context_; }

 private:
  explicit TlsDialer(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

// Sets the host for SNI and for the certificate check.
void SetTlsHost(ssl_st* ssl, const std::string& host);
// Why a handshake failed, in words; for a refused certificate, what is wrong with it.
std::string TlsFailure(const ssl_st* ssl, const std::string& otherwise);

}  // namespace aisp
