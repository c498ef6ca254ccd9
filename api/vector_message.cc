#include "api/vector_message.h"

#include <utility>
#include <vector>

#include "inference.pb.h"

namespace aisp {
namespace {

// Keeps all vectors until the last one is there.
class Gathering : public VectorEncoder {
 public:
  Gathering(std::string model, size_t inputs) : model_(std::move(model)), vectors_(inputs) {}
  void Add(uint32_t index, std::vector<float> vector) override {
    vectors_[index] = std::move(vector);
  }

 protected:
  template <typename Message>
  Message Head(uint32_t prompt_tokens) const {
    Message out;
    out.set_model(model_);
    out.set_prompt_tokens(prompt_tokens);
    return out;
  }

  const std::string model_;
  std::vector<std::vector<float>> vectors_;
};

class EmbedEncoder final : public Gathering {
 public:
  EmbedEncoder(std::string model, size_t inputs, std::optional<uint32_t> dimensions)
      : Gathering(std::move(model), inputs), dimensions_(dimensions) {}

  void Add(uint32_t index, std::vector<float> vector) override {
    if (dimensions_) vector = CutVector(std::move(vector), *dimensions_);
    Gathering::Add(index, std::move(vector));
  }
  std::string Finish(const std::string&, int64_t, uint32_t prompt_tokens) override {
    auto out = Head<v1::EmbedResponse>(prompt_tokens);
    for (const std::vector<float>& vector : vectors_) {
      v1::Embedding* each = out.add_data();
      each->set_index(static_cast<uint32_t>(out.data_size() - 1));
      each->mutable_embedding()->Add(vector.begin(), vector.end());
    }
    return out.SerializeAsString();
  }

 private:
  const std::optional<uint32_t> dimensions_;
};

class ScoreEncoder final : public Gathering {
 public:
  ScoreEncoder(std::string model, size_t first, size_t second)
      : Gathering(std::move(model), first + second), first_(first) {}

  std::string Finish(const std::string&, int64_t, uint32_t prompt_tokens) override {
    auto out = Head<v1::ScoreResponse>(prompt_tokens);
    for (const double score : PairScores(vectors_, first_)) out.add_scores(score);
    return out.SerializeAsString();
  }

 private:
  const size_t first_;
};

class RankEncoder final : public Gathering {
 public:
  RankEncoder(std::string model, RerankRequest request)
      : Gathering(std::move(model), request.documents.size() + 1), request_(std::move(request)) {}

  std::string Finish(const std::string&, int64_t, uint32_t prompt_tokens) override {
    auto out = Head<v1::RerankResponse>(prompt_tokens);
    for (const RankedDocument& each : RankDocuments(vectors_, request_.top_n)) {
      v1::RerankResult* result = out.add_results();
      result->set_index(static_cast<uint32_t>(each.index));
      result->set_relevance_score(each.score);
      if (request_.return_documents) result->set_document(request_.documents[each.index]);
    }
    return out.SerializeAsString();
  }

 private:
  const RerankRequest request_;
};

}  // namespace

std::unique_ptr<VectorEncoder> MakeEmbedMessageEncoder(std::string model, size_t inputs,
                                                       std::optional<uint32_t> dimensions) {
  return std::make_unique<EmbedEncoder>(std::move(model), inputs, dimensions);
}

std::unique_ptr<VectorEncoder> MakeScoreMessageEncoder(std::string model, size_t first,
                                                       size_t second) {
  return std::make_unique<ScoreEncoder>(std::move(model), first, second);
}

std::unique_ptr<VectorEncoder> MakeRerankMessageEncoder(std::string model, RerankRequest request) {
  return std::make_unique<RankEncoder>(std::move(model), std::move(request));
}

}  // namespace aisp
