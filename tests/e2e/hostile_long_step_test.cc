// Slow is not dead: a step that takes several times the router's silence limit loses neither the
// worker nor any stream.
#include <gmock/gmock.h>

#include <fstream>
#include <thread>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

// 69 million parameters: one step over a long prompt takes seconds on one core.
void WriteShape(const std::string& path) {
  const Json shape = {{"architectures", {"LlamaForCausalLM"}},
                      {"model_type", "llama"},
                      {"hidden_size", 768},
                      {"intermediate_size", 3072},
                      {"num_hidden_layers", 8},
                      {"num_attention_heads", 12},
                      {"num_key_value_heads", 4},
                      {"head_dim", 64},
                      {"hidden_act", "silu"},
                      {"max_position_embeddings", 4096},
                      {"rms_norm_eps", 1e-5},
                      {"rope_theta", 10000.0},
                      {"tie_word_embeddings", true},
                      {"torch_dtype", "float32"},
                      {"vocab_size", 512}};
  std::ofstream(path) << shape.dump();
}

class HostileLongStep : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteShape(shape_.path());
    flags_ = {"--model=" + shape_.path(), "--weights=random:1",      "--dtype=f32",
              "--max-prefill-chunk=4096", "--max-batch-tokens=4096", "--router.silence_limit=1s"};
  }

  static Json Ask(const std::string& http, int prompt_tokens, int max_tokens) {
    Json prompt = Json::array();
    for (int i = 0; i < prompt_tokens; ++i) prompt.push_back(5 + i % 200);
    const Json body = {{"prompt", prompt},
                       {"max_tokens", max_tokens},
                       {"temperature", 0},
                       {"ignore_eos", true},
                       {"return_token_ids", true}};
    HttpClient client = Connect(http, std::chrono::minutes(5));
    const auto answer = client.Request("POST", "/v1/completions", body.dump());
    EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
    return answer ? Json::parse(answer->body, nullptr, false) : Json();
  }

  static void ExpectAllAnswered(const std::string& http) {
    const Json alone = Ask(http, 20, 16);
    std::vector<std::thread> streams;
    std::vector<Json> replies(4);
    for (Json& reply : replies) streams.emplace_back([&] { reply = Ask(http, 20, 16); });
    const Json long_answer = Ask(http, 2500, 2);
    for (std::thread& stream : streams) stream.join();
    EXPECT_EQ(long_answer["usage"]["completion_tokens"], 2) << long_answer;
    for (const Json& reply : replies) {
      EXPECT_EQ(reply["choices"][0]["token_ids"], alone["choices"][0]["token_ids"]) << reply;
    }
    EXPECT_EQ(Metric(http, "aisp_workers_forgotten_total"), 0);
    EXPECT_EQ(Metric(http, "aisp_takeovers_total"), 0);
  }

  const TempFile shape_{"long_step_shape.json"};
  std::vector<std::string> flags_;
};

TEST_F(HostileLongStep, KeepsTheWorkerOfOneProcess) {
  std::vector<std::string> args = {"serve", "--role=all", "--port=0", "--no-grpc"};
  args.insert(args.end(), flags_.begin(), flags_.end());
  Process all(args);
  ASSERT_NE(all.Await("ready"), "");
  ExpectAllAnswered(all.Await("http"));
}

TEST_F(HostileLongStep, KeepsTheWorkersOfACluster) {
  Cluster cluster({.flags = flags_});
  ASSERT_TRUE(cluster.AwaitReady());
  ExpectAllAnswered(cluster.http());
}

}  // namespace
}  // namespace aisp::e2e
