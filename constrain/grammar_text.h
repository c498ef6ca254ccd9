// Parses a grammar's text: GBNF (llama.cpp's notation: `root ::= "a" [0-9]+`) or a subset of Lark
// (`start: WORD ("," WORD)*`), distinguished by `::=`. For constrain/ only. Plain values.
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
    kRule,      // rule `name`
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
  std::vector<std::string> ignored;  // Lark's %ignore: may follow every terminal
  bool lark = false;
};

inline constexpr size_t kMaxGrammarBytes = 256 * 1024;

// INVALID_ARGUMENT names the line and the problem, or an unknown notation.
Result<GrammarText> ReadGrammar(std::string_view text, Languages* languages);

}  // namespace aisp
