// JSON Schemas: the first line is a schema, the rest a text. An allowed beginning must be
// completable, as far as one more byte shows: the matcher accepts every byte in the mask, and no
// other. A forced run is the only continuation.
#include "common/check.h"
#include "constrain/json_constraint.h"
#include "constrain/schema_compiler.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

// Except for blanks, and for escapes of the forced character.
void CheckForced(Matcher* matcher) {
  const std::string run = matcher->Forced(64);
  for (const char c : run) {
    for (int byte = 0; byte < 256; ++byte) {
      const char other = static_cast<char>(byte);
      if (other == c || std::string_view("\\ \n\t\r").find(other) != std::string_view::npos)
        continue;
      AISP_CHECK(matcher->AdvanceBytes({&other, 1}) == 0);
    }
    AISP_CHECK(matcher->AdvanceBytes({&c, 1}) == 1);
  }
  matcher->Rewind(run.size());
}

}  // namespace

void FuzzOne(std::string_view input) {
  const size_t line = input.find('\n');
  const std::string_view schema = input.substr(0, line);
  const std::string_view text = line == std::string_view::npos ? "" : input.substr(line + 1);
  CompileLimits limits;
  limits.timeout = std::chrono::milliseconds(200);
  auto compiled = CompileSchema(schema, {}, limits);
  if (!compiled) {
    AISP_CHECK(!compiled.error().message.empty());
    return;
  }
  if (compiled->grammar == nullptr) {
    AISP_CHECK(!compiled->refusals.empty());
    return;
  }
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  const auto constraint = MakeJsonConstraint(std::move(compiled->grammar), Whitespace::kFlexible,
                                             std::make_shared<const TokenTrie>(bytes));
  const auto matcher = constraint->NewMatcher();
  TokenMask mask(256);
  for (const char c : text.substr(0, 256)) {
    CheckForced(matcher.get());
    matcher->Mask(&mask);
    AISP_CHECK(mask.Count() > 0 || matcher->IsWhole());
    const auto byte = static_cast<uint8_t>(c);
    AISP_CHECK(mask.Has(byte) == matcher->Advance(byte));
  }
  CheckForced(matcher.get());
}

}  // namespace aisp
