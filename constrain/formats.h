// The formats of JSON Schema as languages. What the standards name and no regular language says
// exactly is refused.
#pragma once

#include <string_view>

#include "common/result.h"
#include "constrain/language.h"

namespace aisp {

// kAnyText for a name that no draft defines (an annotation by the standard). UNIMPLEMENTED for one
// that a draft defines and that cannot be enforced.
Result<TermId> FormatLanguage(std::string_view format, Languages* languages);

}  // namespace aisp
