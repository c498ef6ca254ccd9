// PreparedRequest: a client's text request, ready for the router: parsed, rendered, tokenized and
// checked against the context length. Made on a pool thread; plain data.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "answer/parser.h"
#include "api/answer_encoder.h"
#include "api/inference_request.h"
#include "api/response.h"
#include "api/vector_encoder.h"
#include "common/shared_tokens.h"
#include "frontend/text_model.h"
#include "worker.pb.h"

namespace aisp {

struct PreparedRequest {
  Endpoint endpoint = Endpoint::kCompletions;
  GenerationOptions options;
  // The model or adapter that the client named, and the adapter's digest ("": none).
  std::string model_name = {};
  std::string adapter = {};
  std::vector<SharedTokens> prompts;  // at least one, none empty
  // One text per prompt for echo, else empty.
  std::vector<std::string> echoes;
  // How the answer is parsed; without calls and thinking, all text is content.
  AnswerParserOptions parse;
  bool include_reasoning = true;
  // HTTP: makes the answer's encoder; empty: the endpoint's own.
  std::function<std::unique_ptr<AnswerEncoder>()> make_encoder = {};
  // The encoder keeps the whole answer even in a stream.
  bool gathers_answer = false;
  // Seed of tool call ids; "": the request's id.
  std::string call_seed = {};
  // If not POOL_NONE, every prompt becomes a vector for `vectors` and no tokens are drawn.
  v1::Pooling pooling = v1::POOL_NONE;
  std::shared_ptr<VectorEncoder> vectors = {};
  // Alternatives per prompt token; -1: none requested. With `echoes` they precede the answer's own
  // logprobs, else they are a field of their own.
  int32_t prompt_logprobs = -1;
  // Constraints to compile, each with the request field it comes from: first the parts, then the
  // whole.
  struct Compiled {
    v1::Constraint constraint;
    std::string field;
  };
  std::vector<Compiled> compiled = {};

  bool Parses() const { return parse.calls != nullptr || parse.think != nullptr; }
  size_t choices() const { return prompts.size() * options.n; }
  // Only the first choice of each prompt computes its logprobs; the others share them.
  bool ScoresPrompt(uint32_t choice) const {
    return prompt_logprobs >= 0 && choice % options.n == 0;
  }
  // How many times a whole HTTP answer repeats a prompt's logprobs.
  size_t PromptCopies() const {
    return prompt_logprobs >= 0 && endpoint != Endpoint::kChat ? options.n : 1;
  }
  bool EchoesLogprobs() const {
    return prompt_logprobs >= 0 && !echoes.empty() && options.sampling.num_logprobs() >= 0;
  }
  bool WantsEveryPosition() const {
    return prompt_logprobs >= 0 || (pooling != v1::POOL_NONE && pooling != v1::POOL_LAST);
  }
  const SharedTokens& PromptOf(uint32_t choice) const { return prompts[choice / options.n]; }
};

ApiResult<PreparedRequest> Prepare(const TextModel& model, CompletionRequest request);
ApiResult<PreparedRequest> Prepare(const TextModel& model, ChatRequest request);
// The last step of Prepare: checks adapter and lengths.
ApiResult<PreparedRequest> Checked(const TextModel& model, PreparedRequest request);
// Compiles the constraints; may take seconds if TakesLong.
ApiResult<void> CheckConstraints(const TextModel& model, const PreparedRequest& request,
                                 const std::string& tenant);
bool TakesLong(const TextModel& model, const PreparedRequest& request);

}  // namespace aisp
