// Parses JSON text into a Value, within bounds; the only part of api/ that uses a JSON library.
// Pure functions: any thread.
#pragma once

#include <string_view>

#include "api/error.h"
#include "text/value.h"

namespace aisp {

// INVALID_ARGUMENT for what RFC 8259 forbids (NaN, ill-formed UTF-8, numbers beyond a double) and
// for nesting deeper than `max_depth`. Keys keep their order; the last of repeated keys counts.
// Integers beyond 64 bits become floats. Linear in the size of the text.
Result<Value> ParseJson(std::string_view text, int max_depth);

// The same by the library alone, which ParseJson uses for what plain_json.h does not know.
Result<Value> ParseAnyJson(std::string_view text, int max_depth);

// `value` as named in a message: a scalar as JSON (strings cut), "a list of 3", "an object".
std::string Describe(const Value& value);

}  // namespace aisp
