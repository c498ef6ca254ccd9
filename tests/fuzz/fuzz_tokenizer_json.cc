// tokenizer.json: any file gives an error, or a tokenizer that encodes within limits and decodes to
// valid UTF-8.
#include <array>

#include "common/check.h"
#include "common/strings.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/tokenizer.h"
#include "text/tokenizer_parts.h"

namespace aisp {

void FuzzOne(std::string_view input) {
  auto parts = ParseTokenizerJson(input);
  if (!parts) {
    AISP_CHECK(!parts.error().message.empty());
    return;
  }
  const Tokenizer tokenizer(std::move(*parts));
  constexpr std::array<std::string_view, 4> kTexts = {"", "Hello, world! 123",
                                                      "  a\n\n\xC3\xA9\xF0\x9F\x98\x80 <s> ",
                                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
  for (const std::string_view text : kTexts) {
    const auto ids = tokenizer.Encode(text);
    if (!ids) continue;
    for (const TokenId id : *ids) AISP_CHECK(id >= 0 && id < tokenizer.VocabSize());
    AISP_CHECK(IsValidUtf8(tokenizer.Decode(*ids, /*skip_special=*/false)));
    AISP_CHECK(IsValidUtf8(tokenizer.Decode(*ids, /*skip_special=*/true)));
  }
}

}  // namespace aisp
