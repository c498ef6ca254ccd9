// The sets of \p{name} in patterns. Inside constrain/ only. Pure: any thread.
#pragma once

#include <optional>
#include <string_view>

#include "constrain/char_set.h"

namespace aisp {

// General categories by short and long name, and the few properties that schemas use; absent for
// any other name.
std::optional<CharSet> UnicodeProperty(std::string_view name);

}  // namespace aisp
