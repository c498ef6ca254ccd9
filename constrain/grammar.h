// Grammar: a context-free grammar over regular terminals. What of the text is regular is one
// terminal, so most rules of practice are few productions; loops are left recursion, which Earley's
// algorithm reads in constant space. Every production can be completed to some text.
//
// Built by CompileGrammar, then unchanged but for automata, which grow as they are walked: callers
// are serialised by whoever owns it.
#pragma once

#include <bitset>
#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "constrain/automaton.h"

namespace aisp {

struct GrammarSymbol {
  bool terminal = false;
  int32_t index = 0;  // into Grammar::terminals, or a rule
};

struct Production {
  int32_t rule = 0;
  std::vector<GrammarSymbol> symbols;
};

struct Grammar {
  Languages languages;
  std::vector<std::unique_ptr<Automaton>> terminals;
  std::vector<Production> productions;
  std::vector<std::vector<int32_t>> of_rule;  // productions
  std::vector<bool> nullable;                 // by rule
  // Bytes that come behind it somewhere in the texts of the grammar.
  std::vector<std::bitset<256>> behind_rule, behind_terminal;
  int32_t root = 0;
};

// INVALID_ARGUMENT: not a grammar, or no text matches. RESOURCE_EXHAUSTED: too large, or not
// compiled within `timeout`.
Result<std::unique_ptr<Grammar>> CompileGrammar(
    std::string_view text, std::chrono::milliseconds timeout = std::chrono::seconds(2));

}  // namespace aisp
