// LinkSecurity: how the processes of one cluster know each other: certificates that all carry one
// name, or a token, or both, or (on a trusted network) nothing. Read once; immutable: any thread.
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

  // Null when nothing is configured. INVALID_ARGUMENT names the setting and the file, never what
  // stands in it.
  static Result<std::shared_ptr<const LinkSecurity>> Load(const ClusterOptions& options);
};

// The contents of a PEM file; INVALID_ARGUMENT names `setting` and the file.
Result<std::string> ReadPem(std::string_view setting, const std::string& path);

// Takes as long for a wrong secret as for the right one.
bool SameSecret(std::string_view a, std::string_view b);

}  // namespace aisp
