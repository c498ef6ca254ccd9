// What /v1/embeddings, /v1/score and /v1/rerank, and their like over gRPC, do with a request: it
// becomes prompts whose hidden states are pooled (a GenerationJob without tokens), and an encoder
// of what came out. On a pool thread; pure but for the model.
#pragma once

#include <string_view>

#include "frontend/prepared_request.h"

namespace aisp {

ApiResult<PreparedRequest> PrepareEmbedding(const TextModel& model, std::string_view body);
ApiResult<PreparedRequest> PrepareScore(const TextModel& model, std::string_view body);
ApiResult<PreparedRequest> PrepareRerank(const TextModel& model, std::string_view body);
// Answered with the message that the encoder serializes.
ApiResult<PreparedRequest> PrepareEmbedding(const TextModel& model,
                                            const v1::EmbedRequest& request);
ApiResult<PreparedRequest> PrepareScore(const TextModel& model, const v1::ScoreRequest& request);
ApiResult<PreparedRequest> PrepareRerank(const TextModel& model, const v1::RerankRequest& request);

}  // namespace aisp
