#include "kvcache/transport/cookie.h"

#include <sys/random.h>

#include <charconv>
#include <utility>

#include "common/check.h"

namespace aisp {

Hash128 NewCookie() {
  Hash128 cookie;
  // Reads of up to 256 bytes are never short once the source is initialised.
  AISP_CHECK(getrandom(&cookie, sizeof(cookie), 0) == static_cast<ssize_t>(sizeof(cookie)));
  return cookie;
}

Result<Hash128> ParseCookie(std::string_view hex) {
  Hash128 cookie;
  if (hex.size() != 32) return InvalidArgument("a cookie has 32 hexadecimal digits");
  for (const auto& [half, digits] :
       {std::pair{&cookie.hi, hex.substr(0, 16)}, std::pair{&cookie.lo, hex.substr(16)}}) {
    const char* end = digits.data() + digits.size();
    // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): `end` is the size
    const auto [stop, error] = std::from_chars(digits.data(), end, *half, 16);
    if (error != std::errc() || stop != end)
      return InvalidArgument("a cookie has 32 hexadecimal digits");
  }
  return cookie;
}

}  // namespace aisp
