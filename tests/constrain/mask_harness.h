// Takes random tokens under a constraint and compares its masks with what the matcher accepts.
#pragma once

#include <random>

#include "tests/constrain/schema_harness.h"

namespace aisp {

inline const std::vector<std::string>& Pieces() {
  static const std::vector<std::string> kPieces = {
      "{\"",    "\":",      "\",",      "\",\"",     "\"}",       "\"]",      "\":\"",
      "\": \"", "\":{\"",   "\": [",    "}}",        "}]",        "],",       "null",
      "true",   "false",    " \"",      ", \"",      "abc",       "name",     "na",
      "ame\"",  "name\":",  "id\"",     "1x",        "x\"",       "12",       "123",
      "0.5",    "-1",       "\\n",      "\\u00",     "\\\"",      "a\\\"b",   "\\\\\"",
      "\xC3",   "\xA9",     "\xC3\xA9", "\xF0\x9F",  "\x98\x80",  "\n  ",     "    ",
      "ab\"",   "aa",       "aaaa\"",   "aaaaaaaa",  "{}",        "[]",       "\"\"",
      "1,",     "1}",       "e+",       "e+1",       ".0",        "n\\u0061", "\\u006",
      "1\"}",   "\",\"\",", "\":1,\"",  "\",\"a\"]", "a\",\"a\"", "\\u",      "\\u0061",
      "\xF0",   "\\ud83d",  "b\":0,\"b"};
  return kPieces;
}

inline std::string PieceOf(TokenId id) {
  return id < 256 ? std::string(1, static_cast<char>(id)) : Pieces()[static_cast<size_t>(id) - 256];
}

// Draws random tokens until the text is complete or long, and compares at every step.
inline void CompareMasks(Constraint* constraint, const std::string& schema, uint32_t seed) {
  const size_t vocabulary = 256 + Pieces().size();
  std::mt19937 random(seed);
  const auto matcher = constraint->NewMatcher();
  std::string text;
  TokenMask mask(vocabulary);
  for (int step = 0; step < 40; ++step) {
    matcher->Mask(&mask);
    std::vector<TokenId> allowed;
    bool leads_on = false;
    for (TokenId id = 0; id < static_cast<TokenId>(vocabulary); ++id) {
      const bool taken = matcher->Advance(id);
      if (taken) matcher->Rewind(1);
      ASSERT_EQ(mask.Has(static_cast<size_t>(id)), taken)
          << schema << "\nafter " << text << "\ntoken " << PieceOf(id);
      if (!taken) continue;
      // Long tokens more often, blanks rarely: they do not advance the text.
      const std::string piece = PieceOf(id);
      const bool blank = piece.find_first_not_of(" \n\t\r") == std::string::npos;
      leads_on = leads_on || !blank;
      if (!blank || random() % 8 == 0) allowed.insert(allowed.end(), id >= 256 ? 6 : 1, id);
    }
    if (!leads_on) {
      ASSERT_TRUE(matcher->IsWhole()) << schema << "\na dead end after " << text;
      return;
    }
    const TokenId id = allowed[random() % allowed.size()];
    ASSERT_TRUE(matcher->Advance(id));
    text += PieceOf(id);
  }
}

}  // namespace aisp
