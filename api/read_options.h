// What the bodies of both endpoints share. Inside api/ only.
#pragma once

#include <string_view>

#include "api/fields.h"
#include "api/request.h"

namespace aisp {

// A field of no particular length: the body is bounded already.
inline constexpr size_t kAnyLength = SIZE_MAX;
inline constexpr size_t kMaxNameBytes = 1024;

// The body as a JSON object.
ApiResult<Value> ParseBody(std::string_view body, const ApiLimits& limits);
// All fields of GenerationOptions but logprobs, which the endpoints spell differently.
void ReadGenerationOptions(Fields* fields, const ApiLimits& limits, GenerationOptions* out);
// A list of token ids; false with an error in `fields` when it is none.
bool ReadPromptTokens(Fields* fields, std::string_view name, const Value::List& list,
                      int32_t vocab_size, std::vector<TokenId>* out);

}  // namespace aisp
