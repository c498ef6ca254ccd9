// SpelledArguments: constrains call arguments that are not written as JSON. They are converted to
// JSON as the model writes them (answer/python_arguments.h, answer/xml_arguments.h), and a JSON
// constraint decides which bytes and tokens may follow.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "answer/format.h"
#include "constrain/constraint.h"

namespace aisp {

// Tokens of a vocabulary that these spellings treat differently from JSON. Made once; immutable.
struct SpelledTokens {
  explicit SpelledTokens(std::shared_ptr<const TokenTrie> all);

  struct Some {
    std::shared_ptr<const TokenTrie> trie;
    TokenMask mask;
  };
  std::shared_ptr<const TokenTrie> all;
  Some in_strings;  // tokens that continue after a quote, or that escape a slash
  Some in_texts;    // tokens that a JSON string would have to escape
  // In names: tokens with a byte that is not part of a name. Those that end it need a check.
  Some in_python_names, in_tag_names;
};

// `body`: kPythonic or kXml. `json`: a constraint for JSON objects without blanks, limited to names
// that the spelling can write. `texts`: parameters that are strings by their schema.
std::shared_ptr<Constraint> SpellArguments(CallFormat::Body body, std::shared_ptr<Constraint> json,
                                           std::shared_ptr<const SpelledTokens> tokens,
                                           const std::vector<std::string>& texts);

// Whether calls in this format use another spelling than JSON.
bool SpellsArguments(CallFormat::Body body);
// Whether a parameter of this name can be written; NamePattern is the same as a regex.
bool CanName(CallFormat::Body body, std::string_view parameter);
std::string_view NamePattern(CallFormat::Body body);

}  // namespace aisp
