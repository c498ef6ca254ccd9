#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/embedding_request.h"
#include "api/vector_encoder.h"

namespace aisp {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ParamOf(const auto& result) { return result ? "" : result.error().param; }

TEST(EmbeddingRequest, InputTakesTheFourFormsOfAPrompt) {
  const ApiLimits limits;
  for (const auto& [body, count] : {std::pair(R"({"input":"a"})", 1u),
                                    {R"({"input":["a","b"]})", 2u},
                                    {R"({"input":[1,2,3]})", 1u},
                                    {R"({"input":[[1,2],[3],"c"]})", 3u}}) {
    const auto request = ParseEmbedding(body, limits);
    ASSERT_TRUE(request) << body;
    EXPECT_EQ(request->inputs.size(), count) << body;
    EXPECT_EQ(request->max_tokens, 0u);
  }
}

TEST(EmbeddingRequest, EveryWrongFieldIsNamed) {
  ApiLimits limits;
  limits.vocab_size = 100;
  limits.max_embedding_inputs = 3;
  for (const auto& [body, param] : {std::pair(R"({})", "input"),
                                    {R"({"input":[]})", "input"},
                                    {R"({"input":7})", "input"},
                                    {R"({"input":["a","b","c","d"]})", "input"},
                                    {R"({"input":["a",{}]})", "input[1]"},
                                    {R"({"input":[1,100]})", "input[1]"},
                                    {R"({"input":"a","encoding_format":"hex"})", "encoding_format"},
                                    {R"({"input":"a","dimensions":0})", "dimensions"},
                                    {R"({"input":"a","dimensions":"4"})", "dimensions"},
                                    {R"({"input":"a","timeout":-1})", "timeout"},
                                    {R"({"input":"a","normalize":true})", "normalize"},
                                    {R"({"input":"a","input_type":"query"})", "input_type"}}) {
    EXPECT_EQ(ParamOf(ParseEmbedding(body, limits)), param) << body;
  }
  EXPECT_TRUE(ParseEmbedding(R"({"input":"a","normalize":false,"dimensions":null})", limits));
}

TEST(ScoreRequest, OneTextIsComparedWithAllOrPairwise) {
  const ApiLimits limits;
  const auto all = ParseScore(R"({"text_1":"a","text_2":["b","c"]})", limits);
  ASSERT_TRUE(all);
  EXPECT_THAT(all->first, ElementsAre("a"));
  EXPECT_THAT(all->second, ElementsAre("b", "c"));
  EXPECT_TRUE(ParseScore(R"({"text_1":["a","d"],"text_2":["b","c"]})", limits));
  EXPECT_EQ(ParamOf(ParseScore(R"({"text_1":["a","d"],"text_2":["b"]})", limits)), "text_2");
  EXPECT_EQ(ParamOf(ParseScore(R"({"text_1":"a"})", limits)), "text_2");
  EXPECT_EQ(ParamOf(ParseScore(R"({"text_1":3,"text_2":"b"})", limits)), "text_1");
}

TEST(RerankRequest, DocumentsAreTextsOrObjectsWithText) {
  const ApiLimits limits;
  const auto request =
      ParseRerank(R"({"query":"q","documents":["a",{"text":"b","id":3}],"top_n":1})", limits);
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_THAT(request->documents, ElementsAre("a", "b"));
  EXPECT_EQ(request->top_n, 1u);
  EXPECT_EQ(ParamOf(ParseRerank(R"({"documents":["a"]})", limits)), "query");
  EXPECT_EQ(ParamOf(ParseRerank(R"({"query":"q"})", limits)), "documents");
  EXPECT_EQ(ParamOf(ParseRerank(R"({"query":"q","documents":"a"})", limits)), "documents");
  EXPECT_EQ(ParamOf(ParseRerank(R"({"query":"q","documents":[{"title":"a"}]})", limits)),
            "documents[0]");
  EXPECT_EQ(ParamOf(ParseRerank(R"({"query":"q","documents":["a"],"rank_fields":["a"]})", limits)),
            "rank_fields");
}

TEST(VectorEncoder, EmbeddingsAreListedInTheOrderOfTheirInputs) {
  auto encoder = MakeEmbeddingsEncoder("m", 2, /*base64=*/false, std::nullopt);
  encoder->Add(1, {0, 1});
  encoder->Add(0, {0.6f, -0.8f});
  const json body = json::parse(encoder->Finish("id", 7, 5));
  EXPECT_EQ(body["object"], "list");
  EXPECT_EQ(body["model"], "m");
  EXPECT_EQ(body["usage"], json::parse(R"({"prompt_tokens":5,"total_tokens":5})"));
  EXPECT_EQ(body["data"][0]["index"], 0);
  EXPECT_EQ(body["data"][0]["object"], "embedding");
  EXPECT_EQ(body["data"][0]["embedding"][0].get<float>(), 0.6f);
  EXPECT_EQ(body["data"][1]["embedding"][1].get<float>(), 1.0f);
}

TEST(VectorEncoder, Base64IsOfLittleEndianFloats) {
  for (const auto& [vector, text] : {std::pair(std::vector<float>{1}, "AACAPw=="),
                                     {{1, -2}, "AACAPwAAAMA="},
                                     {{0, 0, 0.5f}, "AAAAAAAAAAAAAAA/"}}) {
    auto encoder = MakeEmbeddingsEncoder("m", 1, /*base64=*/true, std::nullopt);
    encoder->Add(0, vector);
    EXPECT_EQ(json::parse(encoder->Finish("id", 7, 1))["data"][0]["embedding"], text);
  }
}

TEST(VectorEncoder, DimensionsCutAndScale) {
  EXPECT_THAT(CutVector({3, 4, 12}, 2), ElementsAre(0.6f, 0.8f));
  EXPECT_THAT(CutVector({3, 4}, 2), ElementsAre(3, 4));
  EXPECT_THAT(CutVector({0, 0, 1}, 2), ElementsAre(0, 0));
}

TEST(VectorEncoder, ScoresAreCosinesOfOneAgainstAllOrOfPairs) {
  auto one = MakeScoresEncoder("m", 1, 2);
  one->Add(0, {1, 0});
  one->Add(1, {0.6f, 0.8f});
  one->Add(2, {-1, 0});
  const json scores = json::parse(one->Finish("id", 7, 5));
  EXPECT_NEAR(scores["data"][0]["score"], 0.6, 1e-6);
  EXPECT_EQ(scores["data"][1]["score"], -1.0);
  EXPECT_EQ(scores["data"][1]["object"], "score");
  auto pairs = MakeScoresEncoder("m", 2, 2);
  for (uint32_t i = 0; i < 4; ++i)
    pairs->Add(i, i == 3 ? std::vector<float>{0, 1} : std::vector<float>{1, 0});
  const json each = json::parse(pairs->Finish("id", 7, 5))["data"];
  EXPECT_EQ(each[0]["score"], 1.0);
  EXPECT_EQ(each[1]["score"], 0.0);
}

TEST(VectorEncoder, RanksGoDownAndEqualOnesKeepTheirOrder) {
  RerankRequest request;
  request.documents = {"a", "b", "c", "d"};
  request.top_n = 3;
  auto encoder = MakeRerankEncoder("m", request);
  encoder->Add(0, {1, 0});
  encoder->Add(1, {0, 1});
  encoder->Add(2, {1, 0});
  encoder->Add(3, {0, 1});
  encoder->Add(4, {-1, 0});
  const json body = json::parse(encoder->Finish("id", 7, 9));
  EXPECT_EQ(body["results"].size(), 3u);
  EXPECT_EQ(body["results"][0],
            json::parse(R"({"index":1,"document":{"text":"b"},"relevance_score":1.0})"));
  EXPECT_EQ(body["results"][1]["index"], 0);
  EXPECT_EQ(body["results"][2]["index"], 2);
  EXPECT_EQ(body["usage"]["total_tokens"], 9);
}

}  // namespace
}  // namespace aisp
