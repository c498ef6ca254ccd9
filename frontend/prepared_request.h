// PreparedRequest: a client's request for text as the router takes it: parsed, rendered, tokenized
// and checked against the context. Made on a pool thread; plain data.
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
  // As clients see it: the model or one of its adapters; and the digest of that, "": none.
  std::string model_name = {};
  std::string adapter = {};
  std::vector<SharedTokens> prompts;  // at least one, none empty
  // One per prompt when the prompt's text is wanted back, else empty.
  std::vector<std::string> echoes;
  // How the answer is told apart; without calls and thinking it is content as it comes.
  AnswerParserOptions parse;
  bool include_reasoning = true;
  // Over HTTP, in which shape it is answered; empty: that of its endpoint.
  std::function<std::unique_ptr<AnswerEncoder>()> make_encoder = {};
  // Its encoder gathers the answer even where it streams it.
  bool gathers_answer = false;
  // What ids of its calls are made of; "": the request's id.
  std::string call_seed = {};
  // Not POOL_NONE: every prompt becomes a vector, which this encoder takes; nothing is drawn.
  v1::Pooling pooling = v1::POOL_NONE;
  std::shared_ptr<VectorEncoder> vectors = {};
  // Alternatives of each token of the prompts; -1: none are wanted. With `echoes` they stand before
  // the answer's own logprobs, else beside the choices.
  int32_t prompt_logprobs = -1;
  // What has to compile, and the field that asked for it: parts of the answer's constraint, then
  // all of it.
  struct Compiled {
    v1::Constraint constraint;
    std::string field;
  };
  std::vector<Compiled> compiled = {};

  bool Parses() const { return parse.calls != nullptr || parse.think != nullptr; }
  size_t choices() const { return prompts.size() * options.n; }
  // The first choice of each prompt brings its logprobs; the others have the same prompt.
  bool ScoresPrompt(uint32_t choice) const {
    return prompt_logprobs >= 0 && choice % options.n == 0;
  }
  // How often a whole answer over HTTP says what it says of a prompt's tokens.
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
// The last step of them: the adapter and lengths.
ApiResult<PreparedRequest> Checked(const TextModel& model, PreparedRequest request);
// What is left of them: whether its constraints compile. Takes seconds where TakesLong.
ApiResult<void> CheckConstraints(const TextModel& model, const PreparedRequest& request,
                                 const std::string& tenant);
bool TakesLong(const TextModel& model, const PreparedRequest& request);

}  // namespace aisp
