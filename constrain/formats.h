// The formats of JSON Schema as languages. A format that no regular language describes exactly is
// refused.
#pragma once

#include <string_view>

#include "common/result.h"
#include "constrain/language.h"

namespace aisp {

// kAnyText for names that no draft defines (annotations, by the standard). UNIMPLEMENTED for a
// defined format that cannot be enforced.
Result<TermId> FormatLanguage(std::string_view format, Languages* languages);

}  // namespace aisp
