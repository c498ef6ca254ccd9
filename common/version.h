// The program's version.
#pragma once

#include <string_view>

namespace aisp {

// As printed by `aisp --version`, for example "0.1.0".
std::string_view Version();

}  // namespace aisp
