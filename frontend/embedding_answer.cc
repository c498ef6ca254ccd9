#include "frontend/embedding_answer.h"

#include <utility>

#include "frontend/http_answer.h"

namespace aisp {

void TakeVector(FrontendContext* context, const PreparedRequest& prepared, ChoiceStream& choice) {
  if (!choice.ended()) return;
  context->metrics.embedded_inputs.Add();
  context->metrics.embedded_tokens.Add(
      static_cast<double>(prepared.PromptOf(choice.index()).get().size()));
  prepared.vectors->Add(choice.index(), choice.TakeEmbedding());
}

// Each vector is written as it arrives, which spreads the work.
void EmbeddingAnswer::OnProgress(ChoiceStream& choice) { TakeVector(context_, *prepared_, choice); }

void EmbeddingAnswer::OnDone(std::span<const std::unique_ptr<ChoiceStream>> /*choices*/,
                             const AnswerUsage& usage) {
  HttpHeaders headers = Headers();
  headers.emplace_back("content-type", std::string(kJsonContentType));
  exchange_->Respond(
      200, std::move(headers),
      prepared_->vectors->Finish(exchange_->request().id, UnixTimeS(), usage.prompt_tokens));
}

void EmbeddingAnswer::OnFailed(const ApiError& error, Duration retry_after) {
  RespondError(*exchange_, error, retry_after, Headers());
}

HttpHeaders EmbeddingAnswer::Headers() const {
  HttpHeaders headers;
  if (!traceparent_.empty()) headers.emplace_back("traceparent", traceparent_);
  if (!route_.empty()) headers.emplace_back("x-aisp-route", route_);
  AddIgnored(prepared_, &headers);
  return headers;
}

}  // namespace aisp
