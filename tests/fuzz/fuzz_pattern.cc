// Regular expressions: the first line is a pattern, the rest a text. Matching by bytes and by code
// points must give the same result, and a pattern and its complement never both match. Patterns
// with too many states are refused, as by the real callers.
#include "common/check.h"
#include "common/strings.h"
#include "constrain/automaton.h"
#include "constrain/pattern.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {

void FuzzOne(std::string_view input) {
  const size_t line = input.find('\n');
  const std::string_view pattern = input.substr(0, std::min<size_t>(line, 64));
  const std::string_view text =
      line == std::string_view::npos ? "" : input.substr(line + 1).substr(0, 256);
  Languages languages(2500);  // larger patterns would take seconds under a sanitizer
  const auto language = CompilePattern(pattern, &languages);
  if (!language) {
    AISP_CHECK(!language.error().message.empty());
    return;
  }
  if (!IsValidUtf8(text) || !Automaton::IsNarrow(&languages, *language)) return;
  Automaton automaton(&languages, *language);
  int32_t state = automaton.start();
  for (const char c : text) {
    if (state != Automaton::kDead) state = automaton.Step(state, static_cast<uint8_t>(c));
  }
  const bool matches = state != Automaton::kDead && automaton.Accepts(state);
  AISP_CHECK(matches == automaton.Matches(text) || languages.Exhausted());
  Automaton opposite(&languages, languages.Not(*language));
  AISP_CHECK(matches != opposite.Matches(text) || languages.Exhausted());
}

}  // namespace aisp
