// Splits a Jinja template into tokens, with the settings of Hugging Face's chat templates:
// trim_blocks and lstrip_blocks on, the last newline of the source dropped (jinja2/lexer.py). Pure
// function: any thread.
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

// INVALID_ARGUMENT with the line for a malformed template.
Result<std::vector<Token>> Tokenize(std::string_view source);

// An error that names a line of the template.
tl::unexpected<Error> TemplateError(int line, std::string_view message);

}  // namespace aisp::jinja
