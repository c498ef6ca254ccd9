// VectorEncoder: answers made of embeddings: /v1/embeddings, /v1/score, /v1/rerank, and their gRPC
// equivalents (api/vector_message.h). It receives each input's vector (norm 1) in any order and
// keeps what the body needs. Pure; one thread per encoder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/embedding_request.h"

namespace aisp {

class VectorEncoder {
 public:
  virtual ~VectorEncoder() = default;
  // Gives the vector of input `index`, numbered as the request's prompts; once each.
  virtual void Add(uint32_t index, std::vector<float> vector) = 0;
  // The body, once all vectors were added. `id`: the request's id.
  virtual std::string Finish(const std::string& id, int64_t created_s, uint32_t prompt_tokens) = 0;
};

// OpenAI's list of embeddings.
std::unique_ptr<VectorEncoder> MakeEmbeddingsEncoder(std::string model, size_t inputs, bool base64,
                                                     std::optional<uint32_t> dimensions);
// vLLM's list of scores: the cosine of each pair. The inputs are `first`, then `second`; a single
// `first` is paired with every `second`.
std::unique_ptr<VectorEncoder> MakeScoresEncoder(std::string model, size_t first, size_t second);
// Jina's and Cohere's results, most similar first. The inputs are the query, then the documents.
std::unique_ptr<VectorEncoder> MakeRerankEncoder(std::string model, RerankRequest request);

// The cosine of each pair; a single `first` is paired with every `second`. `vectors`: `first` of
// them, then the second ones.
std::vector<double> PairScores(const std::vector<std::vector<float>>& vectors, size_t first);

struct RankedDocument {
  size_t index = 0;
  double score = 0;
};
// Most similar first, at most `top_n` (0: all). `vectors`: the query's, then the documents'.
std::vector<RankedDocument> RankDocuments(const std::vector<std::vector<float>>& vectors,
                                          uint32_t top_n);

// The first `dimensions` elements, scaled to norm 1; an all-zero vector stays zero.
std::vector<float> CutVector(std::vector<float> vector, uint32_t dimensions);

}  // namespace aisp
