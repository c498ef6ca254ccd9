// Prepares /v1/embeddings, /v1/score, /v1/rerank and their gRPC equivalents: the inputs become
// prompts whose hidden states are pooled (a GenerationJob that generates no tokens), and an encoder
// for the result. On a pool thread; pure apart from reading the model.
#pragma once

#include <string_view>

#include "frontend/prepared_request.h"

namespace aisp {

ApiResult<PreparedRequest> PrepareEmbedding(const TextModel& model, std::string_view body);
ApiResult<PreparedRequest> PrepareScore(const TextModel& model, std::string_view body);
ApiResult<PreparedRequest> PrepareRerank(const TextModel& model, std::string_view body);
// For gRPC: the encoder's body is the serialized response message.
ApiResult<PreparedRequest> PrepareEmbedding(const TextModel& model,
                                            const v1::EmbedRequest& request);
ApiResult<PreparedRequest> PrepareScore(const TextModel& model, const v1::ScoreRequest& request);
ApiResult<PreparedRequest> PrepareRerank(const TextModel& model, const v1::RerankRequest& request);

}  // namespace aisp
