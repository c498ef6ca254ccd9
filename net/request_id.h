// Request ids: the client's own (x-request-id), or a new one when that is absent or unsafe for a
// header or log line. One owner, not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/random.h"

namespace aisp {

inline constexpr size_t kMaxRequestIdBytes = 128;

class RequestIds {
 public:
  explicit RequestIds(uint64_t seed) : random_(seed) {}

  // `given` if it is 1 to 128 visible ASCII characters, else 32 random hexadecimal digits.
  std::string For(std::string_view given);

 private:
  SplitMix64 random_;
};

}  // namespace aisp
