// Grammar: a context-free grammar over regular terminals. Regular parts are one terminal, so rules
// usually have few productions; loops are left-recursive, which Earley's algorithm reads in
// constant space. Every production can be completed.
//
// Built by CompileGrammar and then unchanged, except for lazily built automata: the owner
// serialises callers.
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
  // Bytes that may follow the symbol anywhere in the grammar.
  std::vector<std::bitset<256>> behind_rule, behind_terminal;
  int32_t root = 0;
};

// INVALID_ARGUMENT: malformed, or no text matches. RESOURCE_EXHAUSTED: too large, or not compiled
// within `timeout`.
Result<std::unique_ptr<Grammar>> CompileGrammar(
    std::string_view text, std::chrono::milliseconds timeout = std::chrono::seconds(2));

}  // namespace aisp
