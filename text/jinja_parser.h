// Parses a Jinja template (jinja2/parser.py). Pure function: any thread.
#pragma once

#include <string_view>

#include "common/result.h"
#include "text/jinja_ast.h"

namespace aisp::jinja {

inline constexpr size_t kMaxTemplateBytes = 1u << 20;
inline constexpr int kMaxTreeDepth = 200;

// INVALID_ARGUMENT with the line for a template that is malformed, too large or too deeply nested;
// UNIMPLEMENTED for tags that read other files.
Result<Block> ParseTemplate(std::string_view source);

}  // namespace aisp::jinja
