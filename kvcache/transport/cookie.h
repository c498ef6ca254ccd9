// Cookies: 128 random bits in a descriptor that tell the process that made it from a successor or a
// stranger at the same address. Any thread.
#pragma once

#include <string_view>

#include "common/hash.h"
#include "common/result.h"

namespace aisp {

// From the kernel's random source.
Hash128 NewCookie();
// 32 hexadecimal digits, as Hash128::ToHex gives them.
Result<Hash128> ParseCookie(std::string_view hex);

}  // namespace aisp
