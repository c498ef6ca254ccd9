// Fill in the middle: how models are asked for the text between a prompt and its suffix. A family
// is data: the control tokens by which it was trained, and in which order the parts stand. Pure
// functions; any thread.
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
  // What stands before the prompt, between the parts and at the end; "": nothing.
  std::string_view begin, between, end;
  bool suffix_first = false;
  // Tokens that end the text, where the tokenizer has them.
  std::array<std::string_view, 4> stops;
};

// Null when the tokenizer has no family's tokens.
const FillInMiddle* FindFillInMiddle(const Tokenizer& tokenizer);
// "Qwen2.5-Coder, StarCoder, ...": for errors.
std::string FillInMiddleNames();
// INVALID_ARGUMENT when a part has one of the control tokens in it, or is not UTF-8.
Result<std::vector<TokenId>> EncodeFillInMiddle(const Tokenizer& tokenizer,
                                                const FillInMiddle& format, std::string_view prompt,
                                                std::string_view suffix);
std::vector<TokenId> EndsOfMiddle(const Tokenizer& tokenizer, const FillInMiddle& format);

}  // namespace aisp
