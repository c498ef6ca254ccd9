// Which parameters of a tool are texts by their schema: where a format writes values without types,
// these stand as they are and all others as JSON. Whoever constrains an answer and whoever reads it
// have to agree on that, so both ask here. Pure.
#pragma once

#include <string>
#include <vector>

#include "text/value.h"

namespace aisp {

// `schema`: of the tool's parameters. Every value that fits the property `key` is a string, seen
// from its type, enum, const, anyOf, oneOf, allOf and $ref; what is not seen is no text.
bool IsTextParameter(const Value& schema, const std::string& key);
// All such names in `properties`.
std::vector<std::string> TextParameters(const Value& schema);

}  // namespace aisp
