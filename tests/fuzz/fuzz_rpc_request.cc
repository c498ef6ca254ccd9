// Messages of gRPC clients: what Protobuf accepts becomes a request within its limits, or an error
// that names its cause. The first byte chooses the method.
#include "api/error.h"
#include "api/inference_request.h"
#include "common/check.h"
#include "common/strings.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

void CheckError(const ApiError& error) {
  AISP_CHECK(!error.message.empty());
  AISP_CHECK(error.code != Code::kOk);
  AISP_CHECK(IsValidUtf8(error.message));
}

void CheckOptions(const GenerationOptions& options, const ApiLimits& limits) {
  AISP_CHECK(options.n >= 1 && options.n <= static_cast<uint32_t>(limits.max_choices));
  AISP_CHECK(options.stop.size() <= static_cast<size_t>(limits.max_stop_strings));
  AISP_CHECK(options.sampling.temperature() >= 0);
  AISP_CHECK(options.sampling.num_logprobs() <= limits.max_logprobs);
  for (const TokenId id : options.stop_token_ids) AISP_CHECK(id >= 0 && id < limits.vocab_size);
  for (const auto& [id, bias] : options.sampling.logit_bias()) {
    AISP_CHECK(id >= 0 && id < limits.vocab_size);
    AISP_CHECK(bias >= -100 && bias <= 100);
  }
}

}  // namespace

void FuzzOne(std::string_view input) {
  if (input.empty()) return;
  ApiLimits limits;
  limits.vocab_size = 4096;
  const std::string body(input.substr(1));
  switch (input[0] % 3) {
    case 0: {
      v1::InferenceRequest message;
      if (!message.ParseFromString(body)) return;
      const auto request = ParseInference(message, limits);
      if (!request) return CheckError(request.error());
      if (const auto* chat = std::get_if<ChatRequest>(&*request)) {
        CheckOptions(*chat, limits);
        AISP_CHECK(chat->max_tokens != 0u);
        AISP_CHECK(chat->messages.IsList() && !chat->messages.AsList().empty());
        AISP_CHECK(chat->messages.depth() <= static_cast<uint32_t>(limits.max_json_depth) + 8);
      } else {
        const auto& completion = std::get<CompletionRequest>(*request);
        CheckOptions(completion, limits);
        AISP_CHECK(completion.prompts.size() == 1);
        // No tokens need be generated where the prompt is echoed, over HTTP too (docs/api.md).
        const bool asks_for_prompt = completion.echo || completion.prompt_logprobs >= 0;
        AISP_CHECK(completion.max_tokens != 0u || asks_for_prompt);
      }
      return;
    }
    case 1: {
      v1::TokenizeRequest message;
      if (!message.ParseFromString(body)) return;
      const auto request = ParseTokenize(message, limits);
      if (!request) CheckError(request.error());
      return;
    }
    default: {
      v1::DetokenizeRequest message;
      if (!message.ParseFromString(body)) return;
      const auto request = ParseDetokenize(message, limits);
      if (!request) return CheckError(request.error());
      for (const TokenId id : request->tokens) AISP_CHECK(id >= 0 && id < limits.vocab_size);
    }
  }
}

}  // namespace aisp
