// What the bodies of both endpoints share. Inside api/ only.
#pragma once

#include <string_view>

#include "api/fields.h"
#include "api/request.h"
#include "api/response.h"

namespace aisp {

// A field of no particular length: the body is bounded already.
inline constexpr size_t kAnyLength = SIZE_MAX;
inline constexpr size_t kMaxNameBytes = 1024;
inline constexpr size_t kMaxTools = 1024;

// The body as a JSON object.
ApiResult<Value> ParseBody(std::string_view body, const ApiLimits& limits);
// Who asks, how urgently, and what KV may be shared: model, user, cache_salt, priority,
// service_class, timeout.
void ReadCallerOptions(Fields* fields, const ApiLimits& limits, GenerationOptions* out);
// A string, a list of strings, a list of token ids, or a list of such lists.
void ReadPrompts(Fields* fields, std::string_view name, int32_t max_prompts, int32_t vocab_size,
                 std::vector<Prompt>* out);
// All fields of GenerationOptions but logprobs, which the endpoints spell differently. `least`: the
// smallest max_tokens.
void ReadGenerationOptions(Fields* fields, const ApiLimits& limits, GenerationOptions* out,
                           int64_t least_tokens = 1);
// response_format, guided_json|regex|choice and structured_outputs.
void ReadConstraint(Fields* fields, GenerationOptions* out);
// force_finish by itself says nothing. `calls`: the answer may be calls of tools.
void CheckForceFinish(Fields* fields, const GenerationOptions& options, bool calls);
// tools, tool_choice, parallel_tool_calls; after the constraint was read.
void ReadTools(Fields* fields, ChatRequest* out);
// reasoning_effort, thinking_token_budget, include_reasoning.
void ReadThinking(Fields* fields, ChatRequest* out);
// Refuses by name what would change the answer and cannot be honoured.
void RefuseUnsupported(Fields* fields, Endpoint endpoint);
// What the chat template is rendered from: messages, template variables, how the prompt ends.
void ReadConversation(Fields* fields, const ApiLimits& limits, ChatRequest* out);
// vLLM's prompt_logprobs has no place in a stream.
void RefusePromptLogprobsInStream(Fields* fields, const GenerationOptions& options);
// A list of token ids; false with an error in `fields` when it is none.
bool ReadPromptTokens(Fields* fields, std::string_view name, const Value::List& list,
                      int32_t vocab_size, std::vector<TokenId>* out);

}  // namespace aisp
