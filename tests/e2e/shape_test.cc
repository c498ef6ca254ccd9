// A shape with random weights, which has neither checkpoint nor tokenizer, is served like any
// model: prompts as ids and as text.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/loadgen_run.h"

namespace aisp::e2e {
namespace {

constexpr int kVocabulary = 3000;

void WriteShape(const std::string& path) {
  const Json shape = {{"architectures", {"LlamaForCausalLM"}},
                      {"model_type", "llama"},
                      {"hidden_size", 64},
                      {"intermediate_size", 128},
                      {"num_hidden_layers", 2},
                      {"num_attention_heads", 4},
                      {"num_key_value_heads", 2},
                      {"head_dim", 16},
                      {"hidden_act", "silu"},
                      {"max_position_embeddings", 2048},
                      {"rms_norm_eps", 1e-5},
                      {"rope_theta", 10000.0},
                      {"tie_word_embeddings", true},
                      {"torch_dtype", "bfloat16"},
                      {"vocab_size", kVocabulary}};
  std::ofstream(path) << shape.dump();
}

class Shape : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteShape(shape_.path());
    server_ = std::make_unique<Process>(
        std::vector<std::string>{"serve", "--role=all", "--port=0", "--log-level=warning",
                                 "--model=" + shape_.path(), "--weights=random:1"});
    http_ = server_->Await("http");
    ASSERT_NE(http_, "");
    ASSERT_NE(server_->Await("ready"), "");
  }
  Json Post(const std::string& path, const Json& body) {
    auto answer =
        Connect(http_).Request("POST", path, body.dump(), {{"content-type", "application/json"}});
    EXPECT_TRUE(answer);
    EXPECT_EQ(answer->status, 200) << answer->body;
    return Json::parse(answer->body, nullptr, false);
  }

  const TempFile shape_{"shape.json"};
  std::unique_ptr<Process> server_;
  std::string http_;
};

TEST_F(Shape, AnswersIdsAndTextAlike) {
  const std::string text = "Grüße<|2999|>!";
  const Json tokens = Post("/tokenize", {{"prompt", text}})["tokens"];
  EXPECT_EQ(tokens.size(), 9u);  // eight bytes and a token
  EXPECT_EQ(Post("/detokenize", {{"tokens", tokens}})["prompt"], text);

  const Json common = {
      {"temperature", 0}, {"max_tokens", 20}, {"ignore_eos", true}, {"return_token_ids", true}};
  Json by_text = common, by_ids = common;
  by_text["prompt"] = text;
  by_ids["prompt"] = tokens;
  const Json one = Post("/v1/completions", by_text), other = Post("/v1/completions", by_ids);
  EXPECT_EQ(one["usage"]["prompt_tokens"], 9);
  EXPECT_EQ(one["usage"]["completion_tokens"], 20);
  EXPECT_EQ(one["choices"][0]["token_ids"].size(), 20u);
  EXPECT_EQ(one["choices"][0]["text"], other["choices"][0]["text"]);
  EXPECT_EQ(Post("/detokenize", {{"tokens", one["choices"][0]["token_ids"]}})["prompt"],
            one["choices"][0]["text"]);
}

TEST_F(Shape, TakesLoad) {
  const TempFile result("shape_result.json");
  const LoadgenRun ran =
      RunLoadgen("--base-url http://" + http_ +
                 " --num-prompts 24 --max-concurrency 8 --input-len 40 --output-len 12 "
                 "--ignore-eos --vocab-size 3000 --save-result --result-filename " +
                 result.path());
  ASSERT_EQ(ran.code, 0) << ran.output;
  const Json said = ReadJson(result);
  EXPECT_EQ(said["completed"], 24);
  EXPECT_EQ(said["total_input_tokens"], 24 * 40);
  EXPECT_EQ(said["total_output_tokens"], 24 * 12);
}

}  // namespace
}  // namespace aisp::e2e
