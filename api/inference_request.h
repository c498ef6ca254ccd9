// Converts the requests of aisp.v1.Inference to the same plain data as HTTP bodies. The same code
// reads both, so ranges, defaults and errors are equal on both surfaces. Pure: any thread.
#pragma once

#include <variant>

#include "api/embedding_request.h"
#include "api/request.h"
#include "inference.pb.h"

namespace aisp {

using ClientRequest = std::variant<CompletionRequest, ChatRequest>;

ApiResult<ClientRequest> ParseInference(const v1::InferenceRequest& request,
                                        const ApiLimits& limits);
ApiResult<EmbeddingRequest> ParseEmbedding(const v1::EmbedRequest& request,
                                           const ApiLimits& limits);
ApiResult<ScoreRequest> ParseScore(const v1::ScoreRequest& request, const ApiLimits& limits);
ApiResult<RerankRequest> ParseRerank(const v1::RerankRequest& request, const ApiLimits& limits);
ApiResult<TokenizeRequest> ParseTokenize(const v1::TokenizeRequest& request,
                                         const ApiLimits& limits);
ApiResult<DetokenizeRequest> ParseDetokenize(const v1::DetokenizeRequest& request,
                                             const ApiLimits& limits);

}  // namespace aisp
