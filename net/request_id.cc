#include "net/request_id.h"

#include <algorithm>

#include "common/hash.h"

namespace aisp {

std::string RequestIds::For(std::string_view given) {
  const auto visible = [](char c) { return c > 0x20 && c < 0x7F; };
  if (!given.empty() && given.size() <= kMaxRequestIdBytes &&
      std::all_of(given.begin(), given.end(), visible)) {
    return std::string(given);
  }
  return Hash128{random_.Next(), random_.Next()}.ToHex();
}

}  // namespace aisp
