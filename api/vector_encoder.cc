#include "api/vector_encoder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "api/json_text.h"

namespace aisp {
namespace {

static_assert(std::endian::native == std::endian::little, "vectors travel as little-endian floats");

void AppendBase64(std::string_view bytes, std::string* out) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t n = std::min<size_t>(3, bytes.size() - i);
    uint32_t word = 0;
    for (size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < n ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (size_t k = 0; k < 4; ++k)
      out->push_back(k <= n ? kDigits[word >> (18 - 6 * k) & 63] : '=');
  }
}

std::string Head(std::string_view prefix, const std::string& id, int64_t created_s,
                 const std::string& model) {
  std::string out = "{\"id\":";
  AppendJsonString(std::string(prefix) + id, &out);
  out += ",\"object\":\"list\",\"created\":";
  AppendNumber(created_s, &out);
  out += ",\"model\":";
  AppendJsonString(model, &out);
  return out;
}

void AppendUsage(uint32_t prompt_tokens, std::string* out) {
  out->append(",\"usage\":{\"prompt_tokens\":");
  AppendNumber(prompt_tokens, out);
  out->append(",\"total_tokens\":");
  AppendNumber(prompt_tokens, out);
  out->append("}");
}

// For vectors of norm 1.
double Cosine(const std::vector<float>& a, const std::vector<float>& b) {
  const double dot = std::inner_product(
      a.begin(), a.end(), b.begin(), 0.0, std::plus<>(),
      [](float x, float y) { return static_cast<double>(x) * static_cast<double>(y); });
  return std::clamp(dot, -1.0, 1.0);
}

class EmbeddingsEncoder final : public VectorEncoder {
 public:
  EmbeddingsEncoder(std::string model, size_t inputs, bool base64,
                    std::optional<uint32_t> dimensions)
      : model_(std::move(model)), base64_(base64), dimensions_(dimensions), texts_(inputs) {}

  void Add(uint32_t index, std::vector<float> vector) override {
    if (dimensions_) vector = CutVector(std::move(vector), *dimensions_);
    std::string& out = texts_[index];
    if (base64_) {
      out.push_back('"');
      AppendBase64({reinterpret_cast<const char*>(vector.data()), vector.size() * sizeof(float)},
                   &out);
      out.push_back('"');
    } else {
      AppendList(vector, &out, [&out](float x) { AppendNumber(x, &out); });
    }
  }

  std::string Finish(const std::string& id, int64_t created_s, uint32_t prompt_tokens) override {
    std::string out = Head("embd-", id, created_s, model_);
    out += ",\"data\":";
    size_t index = 0;
    AppendList(texts_, &out, [&](const std::string& text) {
      out += "{\"object\":\"embedding\",\"index\":";
      AppendNumber(index++, &out);
      out += ",\"embedding\":";
      out += text;
      out.push_back('}');
    });
    AppendUsage(prompt_tokens, &out);
    out.push_back('}');
    return out;
  }

 private:
  const std::string model_;
  const bool base64_;
  const std::optional<uint32_t> dimensions_;
  std::vector<std::string> texts_;  // JSON of each vector
};

class ScoresEncoder final : public VectorEncoder {
 public:
  ScoresEncoder(std::string model, size_t first, size_t second)
      : model_(std::move(model)), first_(first), vectors_(first + second) {}

  void Add(uint32_t index, std::vector<float> vector) override {
    vectors_[index] = std::move(vector);
  }

  std::string Finish(const std::string& id, int64_t created_s, uint32_t prompt_tokens) override {
    std::string out = Head("score-", id, created_s, model_);
    out += ",\"data\":";
    size_t index = 0;
    AppendList(PairScores(vectors_, first_), &out, [&](double score) {
      out += "{\"index\":";
      AppendNumber(index++, &out);
      out += ",\"object\":\"score\",\"score\":";
      AppendNumber(score, &out);
      out.push_back('}');
    });
    AppendUsage(prompt_tokens, &out);
    out.push_back('}');
    return out;
  }

 private:
  const std::string model_;
  const size_t first_;
  std::vector<std::vector<float>> vectors_;
};

class RerankEncoder final : public VectorEncoder {
 public:
  RerankEncoder(std::string model, RerankRequest request)
      : model_(std::move(model)),
        request_(std::move(request)),
        vectors_(request_.documents.size() + 1) {}

  void Add(uint32_t index, std::vector<float> vector) override {
    vectors_[index] = std::move(vector);
  }

  std::string Finish(const std::string& id, int64_t /*created_s*/,
                     uint32_t prompt_tokens) override {
    std::string out = "{\"id\":";
    AppendJsonString("rerank-" + id, &out);
    out += ",\"model\":";
    AppendJsonString(model_, &out);
    AppendUsage(prompt_tokens, &out);
    out += ",\"results\":";
    AppendList(RankDocuments(vectors_, request_.top_n), &out, [&](const RankedDocument& each) {
      out += "{\"index\":";
      AppendNumber(each.index, &out);
      if (request_.return_documents) {
        out += ",\"document\":{\"text\":";
        AppendJsonString(request_.documents[each.index], &out);
        out.push_back('}');
      }
      out += ",\"relevance_score\":";
      AppendNumber(each.score, &out);
      out.push_back('}');
    });
    out.push_back('}');
    return out;
  }

 private:
  const std::string model_;
  const RerankRequest request_;
  std::vector<std::vector<float>> vectors_;
};

}  // namespace

std::vector<double> PairScores(const std::vector<std::vector<float>>& vectors, size_t first) {
  std::vector<double> scores;
  for (size_t i = 0; first + i < vectors.size(); ++i)
    scores.push_back(Cosine(vectors[first == 1 ? 0 : i], vectors[first + i]));
  return scores;
}

std::vector<RankedDocument> RankDocuments(const std::vector<std::vector<float>>& vectors,
                                          uint32_t top_n) {
  std::vector<RankedDocument> order;
  for (size_t i = 1; i < vectors.size(); ++i)
    order.push_back({i - 1, Cosine(vectors[0], vectors[i])});
  // Equal scores keep their order.
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.score > b.score; });
  if (top_n > 0 && top_n < order.size()) order.resize(top_n);
  return order;
}

std::vector<float> CutVector(std::vector<float> vector, uint32_t dimensions) {
  if (dimensions >= vector.size()) return vector;
  vector.resize(dimensions);
  double square = 0;
  for (const float x : vector) square += static_cast<double>(x) * static_cast<double>(x);
  if (square == 0) return vector;
  const double norm = std::sqrt(square);
  for (float& x : vector) x = static_cast<float>(static_cast<double>(x) / norm);
  return vector;
}

std::unique_ptr<VectorEncoder> MakeEmbeddingsEncoder(std::string model, size_t inputs, bool base64,
                                                     std::optional<uint32_t> dimensions) {
  return std::make_unique<EmbeddingsEncoder>(std::move(model), inputs, base64, dimensions);
}

std::unique_ptr<VectorEncoder> MakeScoresEncoder(std::string model, size_t first, size_t second) {
  return std::make_unique<ScoresEncoder>(std::move(model), first, second);
}

std::unique_ptr<VectorEncoder> MakeRerankEncoder(std::string model, RerankRequest request) {
  return std::make_unique<RerankEncoder>(std::move(model), std::move(request));
}

}  // namespace aisp
