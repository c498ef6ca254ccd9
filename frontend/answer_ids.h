// Ids and creation times of answers. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace aisp {

// `prefix` and 32 hexadecimal digits that cannot be guessed: without API keys all clients share one
// tenant, and the id of a stored response is all that protects it.
std::string NewAnswerId(std::string_view prefix);

int64_t UnixTimeS();

}  // namespace aisp
