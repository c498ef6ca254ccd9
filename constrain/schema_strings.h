// The strings that a formula allows, as one language (for propertyNames). Pure except for additions
// to `exprs` and `languages`.
#pragma once

#include <functional>

#include "common/result.h"
#include "constrain/schema_expr.h"

namespace aisp {

// `formula`: the formula of a referenced schema. UNIMPLEMENTED: direct self-reference.
Result<TermId> StringsOf(ExprId expr, Exprs* exprs, Languages* languages,
                         const std::function<ExprId(int32_t)>& formula);

}  // namespace aisp
