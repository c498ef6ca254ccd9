// Bodies of /v1/embeddings, /v1/score and /v1/rerank as plain data, under the rules of
// api/request.h. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/request.h"

namespace aisp {

// Reads these options: model, user, cache_salt, priority, service_class and timeout. max_tokens is
// 0.
struct EmbeddingRequest : GenerationOptions {
  std::vector<Prompt> inputs;  // at least one
  bool base64 = false;
  std::optional<uint32_t> dimensions;  // keep only the first elements
};

struct ScoreRequest : GenerationOptions {
  std::vector<std::string> first;   // one, or as many as in `second`
  std::vector<std::string> second;  // at least one
};

struct RerankRequest : GenerationOptions {
  std::string query;
  std::vector<std::string> documents;  // at least one
  uint32_t top_n = 0;                  // number of results; 0: all
  bool return_documents = true;
};

ApiResult<EmbeddingRequest> ParseEmbedding(std::string_view body, const ApiLimits& limits);
ApiResult<EmbeddingRequest> ParseEmbedding(const Value::Map& body, const ApiLimits& limits);
ApiResult<ScoreRequest> ParseScore(std::string_view body, const ApiLimits& limits);
ApiResult<ScoreRequest> ParseScore(const Value::Map& body, const ApiLimits& limits);
ApiResult<RerankRequest> ParseRerank(std::string_view body, const ApiLimits& limits);
ApiResult<RerankRequest> ParseRerank(const Value::Map& body, const ApiLimits& limits);

}  // namespace aisp
