// One line of http.api_keys: a key, its expiry and its limits. Only the SHA-256 of a key is kept,
// and no error quotes a line. Pure functions: any thread.
//
//   [NAME:]KEY             [expires=2027-01-31] [requests=60/m] [tokens=100000/d]
//                          [inflight=4] [weight=2] [priority=all] [class=batch]
//                          [slo-ttft-ms=300] [slo-tpot-ms=12]
//   [NAME:]sha256:DIGEST   the same, without the key itself in the file
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "common/service_class.h"

namespace aisp {

using KeyDigest = std::array<unsigned char, 32>;
KeyDigest DigestOfKey(std::string_view key);

// `count` per `period`: "60/m".
struct Rate {
  int64_t count = 0;
  Duration period{};
  friend bool operator==(const Rate&, const Rate&) = default;
};
// COUNT/s, /m, /h or /d.
Result<Rate> ParseRate(std::string_view text);

struct TenantLimits {
  std::optional<Rate> requests;
  std::optional<Rate> tokens;
  int64_t inflight = 0;  // 0: unlimited
  int64_t weight = 1;    // relative share against other tenants
  // Its requests' priorities count against other tenants' requests, not only its own.
  bool ranks = false;
  ServiceClass service_class = ServiceClass::kInteractive;  // of requests that name no class
  // The SLO of its interactive requests that name none; 0: none.
  double slo_ttft_ms = 0;
  double slo_tpot_ms = 0;
  friend bool operator==(const TenantLimits&, const TenantLimits&) = default;
};

struct ApiKey {
  KeyDigest digest;
  std::string tenant;  // NAME, else "key-" and the first digits of the digest
  int64_t expires_unix_s = INT64_MAX;
  std::string expires;  // as written in the line
  TenantLimits limits;  // `defaults`, overridden by the line
};

// `where` appears in errors.
Result<ApiKey> ParseApiKey(std::string_view line, const std::string& where,
                           const TenantLimits& defaults);

}  // namespace aisp
