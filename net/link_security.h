// LinkSecurity: how the processes of a cluster authenticate each other: certificates with one
// common name, a token, both, or (on a trusted network) nothing. Read once; immutable: any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "net/tls_options.h"

namespace aisp {

struct LinkSecurity {
  std::string cert_pem;
  std::string key_pem;
  std::string ca_pem;
  std::string peer_name;
  std::string token;

  bool tls() const { return !cert_pem.empty(); }

  // Null when not configured. INVALID_ARGUMENT names the setting and the file, not its content.
  static Result<std::shared_ptr<const LinkSecurity>> Load(const ClusterOptions& options);
};

// The contents of a PEM file; INVALID_ARGUMENT names `setting` and the file.
Result<std::string> ReadPem(std::string_view setting, const std::string& path);

// Compares in constant time.
bool SameSecret(std::string_view a, std::string_view b);

}  // namespace aisp
