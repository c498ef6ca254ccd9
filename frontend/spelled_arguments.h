// SpelledArguments: arguments of a call that are spelled otherwise than as JSON, held to a schema
// all the same: what the model writes is said again as JSON (answer/python_arguments.h,
// answer/xml_arguments.h), and a constraint for JSON decides which bytes and tokens may follow.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "answer/format.h"
#include "constrain/constraint.h"

namespace aisp {

// The tokens of a vocabulary that mean something else in these spellings than in JSON. Made once
// for each vocabulary; immutable.
struct SpelledTokens {
  explicit SpelledTokens(std::shared_ptr<const TokenTrie> all);

  struct Some {
    std::shared_ptr<const TokenTrie> trie;
    TokenMask mask;
  };
  std::shared_ptr<const TokenTrie> all;
  Some in_strings;  // tokens that go on behind a quote, or escape a slash
  Some in_texts;    // those that a JSON string would have to escape
  // In a name: tokens that are more than a part of one. Those that end it are to be looked at.
  Some in_python_names, in_tag_names;
};

// `body`: kPythonic or kXml. `json`: a constraint for JSON objects without blanks, whose names are
// those that the spelling can write. `texts`: parameters that are texts by their schema.
std::shared_ptr<Constraint> SpellArguments(CallFormat::Body body, std::shared_ptr<Constraint> json,
                                           std::shared_ptr<const SpelledTokens> tokens,
                                           const std::vector<std::string>& texts);

// Calls in this format spell their arguments so.
bool SpellsArguments(CallFormat::Body body);
// Whether a parameter of this name can be written, and the same as a pattern of JSON Schema.
bool CanName(CallFormat::Body body, std::string_view parameter);
std::string_view NamePattern(CallFormat::Body body);

}  // namespace aisp
