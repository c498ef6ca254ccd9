// Finds the parameters of a tool that are strings by their schema. Formats without typed values
// write these verbatim and all others as JSON. The constraint and the parser must agree on this, so
// both call these functions. Pure.
#pragma once

#include <string>
#include <vector>

#include "text/value.h"

namespace aisp {

// `schema`: of the tool's parameters. True when every value of property `key` must be a string, as
// seen from type, enum, const, anyOf, oneOf, allOf and $ref; false when that cannot be seen.
bool IsTextParameter(const Value& schema, const std::string& key);
// All names in `properties` for which IsTextParameter is true.
std::vector<std::string> TextParameters(const Value& schema);

}  // namespace aisp
