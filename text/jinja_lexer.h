// Cuts a Jinja template into tokens, with the settings that Hugging Face's chat templates are
// written for: trim_blocks and lstrip_blocks on, the last newline of the source dropped
// (jinja2/lexer.py). Pure function: any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace aisp::jinja {

struct Token {
  enum class Kind {
    kData,
    kBlockBegin,
    kBlockEnd,
    kVariableBegin,
    kVariableEnd,
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind = Kind::kEnd;
  std::string text;  // data, name, the string's value, the digits, the operator
  int line = 1;
};

// INVALID_ARGUMENT with the line for what is no template.
Result<std::vector<Token>> Tokenize(std::string_view source);

// The error of a template at a line.
tl::unexpected<Error> TemplateError(int line, std::string_view message);

}  // namespace aisp::jinja
