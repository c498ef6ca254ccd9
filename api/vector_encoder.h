// VectorEncoder: answers that are made of embeddings: /v1/embeddings, /v1/score and /v1/rerank, and
// the same of gRPC (api/vector_message.h). It takes each input's vector as it comes, in any order,
// and keeps of it what the body needs; vectors have norm 1. Pure; one encoder: one thread.
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
  // Of input `index`, as the request's prompts are numbered; once each.
  virtual void Add(uint32_t index, std::vector<float> vector) = 0;
  // The body, when all are there. `id`: of the request.
  virtual std::string Finish(const std::string& id, int64_t created_s, uint32_t prompt_tokens) = 0;
};

// OpenAI's list of embeddings.
std::unique_ptr<VectorEncoder> MakeEmbeddingsEncoder(std::string model, size_t inputs, bool base64,
                                                     std::optional<uint32_t> dimensions);
// vLLM's list of scores: the cosine of each pair. The inputs are `first`, then `second`; of one
// `first` all pairs are made.
std::unique_ptr<VectorEncoder> MakeScoresEncoder(std::string model, size_t first, size_t second);
// Jina's and Cohere's results, the most similar first. The inputs are the query, then the
// documents.
std::unique_ptr<VectorEncoder> MakeRerankEncoder(std::string model, RerankRequest request);

// The cosine of each pair; of one `first` all pairs are made. `vectors`: first, then second.
std::vector<double> PairScores(const std::vector<std::vector<float>>& vectors, size_t first);

struct RankedDocument {
  size_t index = 0;
  double score = 0;
};
// The most similar first, at most `top_n` (0: all). `vectors`: the query's, then the documents'.
std::vector<RankedDocument> RankDocuments(const std::vector<std::vector<float>>& vectors,
                                          uint32_t top_n);

// Cut to its first elements and of norm 1 again; all zero stays so.
std::vector<float> CutVector(std::vector<float> vector, uint32_t dimensions);

}  // namespace aisp
