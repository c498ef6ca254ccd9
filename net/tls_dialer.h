// TlsDialer: what this side of https needs: which certificates it trusts and which it shows. Read
// once from files. Immutable: any thread.
#pragma once

#include <memory>
#include <string>

#include "common/result.h"

struct ssl_ctx_st;
struct ssl_st;

namespace aisp {

struct TlsDialerOptions {
  std::string ca_file;    // PEM; "": those of the system
  std::string cert_file;  // PEM, for a server that asks for one; "": none
  std::string key_file;   // PEM
  bool insecure = false;  // any certificate of any name
};

class TlsDialer {
 public:
  // TLS 1.2 and 1.3. INVALID_ARGUMENT names the file and what is wrong with it.
  static Result<std::shared_ptr<const TlsDialer>> Create(const TlsDialerOptions& options);
  ~TlsDialer();
  TlsDialer(const TlsDialer&) = delete;
  TlsDialer& operator=(const TlsDialer&) = delete;

  // The state of one connection to `host`, whose name (or address) the certificate must carry. The
  // caller frees it.
  ssl_st* NewConnection(const std::string& host) const;
  ssl_ctx_st* native() const { return context_; }

 private:
  explicit TlsDialer(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* const context_;
};

// Names the connection's host for SNI and for the check of its certificate.
void SetTlsHost(ssl_st* ssl, const std::string& host);
// Why a handshake failed, for people: of a certificate that was refused, what is wrong with it.
std::string TlsFailure(const ssl_st* ssl, const std::string& otherwise);

}  // namespace aisp
