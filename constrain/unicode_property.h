// The sets of \p{name} in patterns. For constrain/ only. Pure: any thread.
#pragma once

#include <optional>
#include <string_view>

#include "constrain/char_set.h"

namespace aisp {

// General categories by short and long name, and the few properties that schemas use; nullopt for
// other names.
std::optional<CharSet> UnicodeProperty(std::string_view name);

}  // namespace aisp
