// Request ids: what a client calls its request (x-request-id), or a new id where it gave none that
// can stand in a header and a log line. One owner, not thread-safe.
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

  // `given` when it is 1 to 128 visible ASCII characters, else 32 new hexadecimal digits.
  std::string For(std::string_view given);

 private:
  SplitMix64 random_;
};

}  // namespace aisp
