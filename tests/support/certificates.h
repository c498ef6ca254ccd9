// Certificates for tests, created at run time: an authority and certificates that it signed, as
// PEM.
#pragma once

#include <cstdint>
#include <string>

namespace aisp {

struct Certificate {
  std::string cert_pem;
  std::string key_pem;
};

// Valid from a day ago for `days` days; negative: already expired.
Certificate MakeAuthority(const std::string& name, int64_t days = 10);
// For the DNS name and for 127.0.0.1.
Certificate MakeCertificate(const Certificate& authority, const std::string& dns_name,
                            int64_t days = 10);

}  // namespace aisp
