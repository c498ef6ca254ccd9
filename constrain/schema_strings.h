// The strings that a formula admits, as one language (for propertyNames). Pure but for what it adds
// to `exprs` and `languages`.
#pragma once

#include <functional>

#include "common/result.h"
#include "constrain/schema_expr.h"

namespace aisp {

// `formula`: what a referred schema says. UNIMPLEMENTED: the formula refers to itself in place.
Result<TermId> StringsOf(ExprId expr, Exprs* exprs, Languages* languages,
                         const std::function<ExprId(int32_t)>& formula);

}  // namespace aisp
