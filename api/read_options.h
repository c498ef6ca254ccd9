// Readers that the request bodies share. For api/ only.
#pragma once

#include <string_view>

#include "api/fields.h"
#include "api/request.h"
#include "api/response.h"

namespace aisp {

// No limit of its own: the size of the body is bounded already.
inline constexpr size_t kAnyLength = SIZE_MAX;
inline constexpr size_t kMaxNameBytes = 1024;
inline constexpr size_t kMaxTools = 1024;

// Parses the body, which must be a JSON object.
ApiResult<Value> ParseBody(std::string_view body, const ApiLimits& limits);
// The caller and how its request is treated: model, user, cache_salt, priority, service_class,
// timeout.
void ReadCallerOptions(Fields* fields, const ApiLimits& limits, GenerationOptions* out);
// A string, a list of strings, a list of token ids, or a list of such lists.
void ReadPrompts(Fields* fields, std::string_view name, int32_t max_prompts, int32_t vocab_size,
                 std::vector<Prompt>* out);
// All fields of GenerationOptions except logprobs, which the endpoints spell differently. `least`:
// the smallest max_tokens.
void ReadGenerationOptions(Fields* fields, const ApiLimits& limits, GenerationOptions* out,
                           int64_t least_tokens = 1);
// response_format, guided_json|regex|choice and structured_outputs.
void ReadConstraint(Fields* fields, GenerationOptions* out);
// Refuses force_finish when nothing constrains the answer. `calls`: the answer may be tool calls.
void CheckForceFinish(Fields* fields, const GenerationOptions& options, bool calls);
// tools, tool_choice, parallel_tool_calls; call it after ReadConstraint.
void ReadTools(Fields* fields, ChatRequest* out);
// reasoning_effort, thinking_token_budget, include_reasoning.
void ReadThinking(Fields* fields, ChatRequest* out);
// Refuses by name the fields that would change the answer and are unsupported.
void RefuseUnsupported(Fields* fields, Endpoint endpoint);
// The chat template's input: messages, template variables, how the prompt ends.
void ReadConversation(Fields* fields, const ApiLimits& limits, ChatRequest* out);
// prompt_logprobs is not available in a stream, as in vLLM.
void RefusePromptLogprobsInStream(Fields* fields, const GenerationOptions& options);
// A list of token ids; otherwise false, with an error in `fields`.
bool ReadPromptTokens(Fields* fields, std::string_view name, const Value::List& list,
                      int32_t vocab_size, std::vector<TokenId>* out);

}  // namespace aisp
