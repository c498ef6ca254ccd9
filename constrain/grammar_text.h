// Reads the text of a grammar: GBNF (llama.cpp's notation: `root ::= "a" [0-9]+`), or a subset of
// Lark's (`start: WORD ("," WORD)*`), told apart by `::=`. Inside constrain/ only. Plain values.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "constrain/language.h"

namespace aisp {

struct GrammarNode {
  enum class Kind : uint8_t {
    kLanguage,  // a text of `language`
    kRule,      // what rule `name` says
    kSequence,  // children one after another
    kChoice,    // one of the children
    kRepeat,    // children[0], min to max times (max -1: without end)
  };
  Kind kind = Kind::kSequence;
  TermId language = Languages::kEmptyText;
  std::string name;
  int32_t min = 0, max = 0;
  std::vector<GrammarNode> children;
};

struct GrammarText {
  std::string root;
  std::map<std::string, GrammarNode> rules;
  std::vector<std::string> ignored;  // Lark's %ignore: may stand behind every terminal
  bool lark = false;
};

inline constexpr size_t kMaxGrammarBytes = 256 * 1024;

// INVALID_ARGUMENT names the line and what is wrong there, or a notation that is not understood.
Result<GrammarText> ReadGrammar(std::string_view text, Languages* languages);

}  // namespace aisp
