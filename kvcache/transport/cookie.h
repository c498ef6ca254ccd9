// Cookies: 128 random bits in a descriptor that distinguish the process that made it from any other
// at the same address. Any thread.
#pragma once

#include <string_view>

#include "common/hash.h"
#include "common/result.h"

namespace aisp {

// From the kernel's random source.
Hash128 NewCookie();
// 32 hexadecimal digits, as from Hash128::ToHex. INVALID_ARGUMENT: anything else.
Result<Hash128> ParseCookie(std::string_view hex);

}  // namespace aisp
