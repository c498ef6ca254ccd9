// EmbeddingAnswer: the HTTP answer to a request whose prompts become vectors: one JSON object at
// the end, written by the request's VectorEncoder. The I/O thread.
#pragma once

#include <memory>
#include <string>

#include "frontend/generation_job.h"
#include "proto/http_exchange.h"

namespace aisp {

// Passes the vector of a finished choice to the encoder, and counts it.
void TakeVector(FrontendContext* context, const PreparedRequest& prepared, ChoiceStream& choice);

class EmbeddingAnswer final : public AnswerSink {
 public:
  EmbeddingAnswer(FrontendContext* context, std::shared_ptr<HttpExchange> exchange)
      : context_(context), exchange_(std::move(exchange)) {}

  void OnTraced(const std::string& traceparent) override { traceparent_ = traceparent; }
  void OnPrepared(const PreparedRequest& prepared) override { prepared_ = &prepared; }
  void OnRouted(const std::string& route) override { route_ = route; }
  void OnProgress(ChoiceStream& choice) override;
  void OnDone(std::span<const std::unique_ptr<ChoiceStream>> choices,
              const AnswerUsage& usage) override;
  void OnFailed(const ApiError& error, Duration retry_after) override;

 private:
  HttpHeaders Headers() const;

  FrontendContext* const context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const PreparedRequest* prepared_ = nullptr;
  std::string traceparent_;
  std::string route_;
};

}  // namespace aisp
