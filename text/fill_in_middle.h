// Fill in the middle: prompts for the text between a prefix and a suffix. Model families are data:
// the control tokens used in training and the order of the parts. Pure functions; any thread.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "text/tokenizer.h"

namespace aisp {

struct FillInMiddle {
  std::string_view name;
  // Control tokens before the prompt, between the parts and at the end; "": none.
  std::string_view begin, between, end;
  bool suffix_first = false;
  // Tokens that end the text, if the tokenizer has them.
  std::array<std::string_view, 4> stops;
};

// Null when the tokenizer has the tokens of no family.
const FillInMiddle* FindFillInMiddle(const Tokenizer& tokenizer);
// "Qwen2.5-Coder, StarCoder, ...", for errors.
std::string FillInMiddleNames();
// INVALID_ARGUMENT when a part contains one of the control tokens or is not UTF-8.
Result<std::vector<TokenId>> EncodeFillInMiddle(const Tokenizer& tokenizer,
                                                const FillInMiddle& format, std::string_view prompt,
                                                std::string_view suffix);
std::vector<TokenId> EndsOfMiddle(const Tokenizer& tokenizer, const FillInMiddle& format);

}  // namespace aisp
