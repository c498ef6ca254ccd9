// Names of answers, and when they are made. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace aisp {

// `prefix` and 32 hexadecimal digits that nobody can guess: who knows the name of a stored response
// may read it, where everybody is one tenant.
std::string NewAnswerId(std::string_view prefix);

int64_t UnixTimeS();

}  // namespace aisp
