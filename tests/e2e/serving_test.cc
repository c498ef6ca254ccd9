// Serving over HTTP with real processes: the same greedy story on every route, helpful errors, and
// no blocks left in use.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

using ::testing::HasSubstr;

// f32: the recorded stories were made in float32, so the texts are exactly equal.
const std::vector<std::string> kExact = {"--dtype=f32"};

TEST(Serving, EveryRecordedStoryIsToldLetterByLetterOnBothRoutes) {
  Cluster cluster({.flags = kExact});
  ASSERT_TRUE(cluster.AwaitReady());
  for (const Recorded& story : RecordedStories()) {
    for (const char* route : {"remote", "local"}) {
      for (const bool stream : {true, false}) {
        const Reply reply =
            Chat(cluster.http(), story.messages, story.completion_tokens, route, stream);
        ASSERT_EQ(reply.error, "") << route;
        EXPECT_EQ(reply.text, story.text) << route;
        EXPECT_EQ(reply.finish_reason, story.ends ? "stop" : "length");
        EXPECT_EQ(reply.usage["completion_tokens"], story.completion_tokens);
        EXPECT_EQ(reply.done, stream);
      }
    }
  }
}

struct Split {
  const char* transport;
  const char* block_size;
  const char* chunk;
};

class SplitTest : public ::testing::TestWithParam<Split> {};

// bf16 as shipped, without a prefix cache, so that both routes compute everything: still exactly
// equal.
TEST_P(SplitTest, ASplitRequestSaysTheSameAsOneWorkerAlone) {
  const Split& p = GetParam();
  if (std::string_view(p.transport) == "ucx" &&
      !std::filesystem::exists(std::string(AISP_BINARY_DIR) + "/lib/libaisp_ucx.so")) {
    GTEST_SKIP() << "this build has no ucx lane: UCX's headers are not there";
  }
  Cluster cluster({.flags = {"--no-prefix-cache", std::string("--block-size=") + p.block_size,
                             std::string("--max-prefill-chunk=") + p.chunk},
                   .worker_flags = {std::string("--transports=") + p.transport}});
  ASSERT_TRUE(cluster.AwaitReady());
  for (const int words : {150, 333, 1100}) {
    const std::string prompt = Prose(words, words);
    const Reply alone = Complete(cluster.http(), prompt, 48, "local");
    const Reply split = Complete(cluster.http(), prompt, 48, "remote");
    ASSERT_EQ(alone.error + split.error, "");
    EXPECT_EQ(split.text, alone.text) << words << " words";
    EXPECT_EQ(alone.usage["aisp"]["kv_transport"], "");
    EXPECT_EQ(split.usage["aisp"]["kv_transport"], p.transport);
    const int blocks = std::stoi(p.block_size);
    const int tokens = split.usage["prompt_tokens"];
    EXPECT_EQ(split.usage["aisp"]["kv_blocks_moved"], (tokens + blocks - 1) / blocks);
    EXPECT_EQ(split.usage["aisp"]["first_decode_ms"], 0) << "the first token came with the KV";
  }
}

INSTANTIATE_TEST_SUITE_P(All, SplitTest,
                         ::testing::Values(Split{"shm", "16", "256"}, Split{"shm", "64", "48"},
                                           Split{"tcp", "32", "100"}, Split{"tcp", "128", "512"},
                                           Split{"ucx", "64", "256"}),
                         [](const auto& param) {
                           return std::string(param.param.transport) + "_block_" +
                                  param.param.block_size + "_chunk_" + param.param.chunk;
                         });

// With the prefix cache on, the part of the prompt that both workers have cached is neither
// transferred nor computed.
TEST(Serving, PrefixHitsOfEveryKindLeaveTheTextAsItIs) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string common = Prose(200, 5);
  const std::string cold = Complete(cluster.http(), common + " Then", 32, "remote").text;
  EXPECT_EQ(Complete(cluster.http(), common + " Then", 32, "remote").text, cold);
  const Reply again = Complete(cluster.http(), common + " Then", 32, "local");
  EXPECT_EQ(again.text, cold);
  EXPECT_GT(again.usage["prompt_tokens_details"]["cached_tokens"], 150);
  const Reply longer = Complete(cluster.http(), common + " " + Prose(300, 9), 32, "remote");
  const Reply longer_again = Complete(cluster.http(), common + " " + Prose(300, 9), 32, "");
  EXPECT_EQ(longer.text, longer_again.text);
}

TEST(Serving, ADecodeWorkerMayBeAdvertisedByName) {
  Cluster cluster({.worker_flags = {"--transports=tcp", "--data-advertise=localhost"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const Reply reply = Complete(cluster.http(), Prose(150, 1), 8, "remote");
  EXPECT_EQ(reply.error, "");
  EXPECT_EQ(reply.usage["aisp"]["kv_transport"], "tcp");
}

TEST(Serving, TheRouteHeaderSaysWhereAndWhy) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const Json messages = {
      {{"role", "user"},
       {"content", "Tell me a long story about a pig, a song, a hill, a queen and a kite."}}};
  EXPECT_THAT(Chat(cluster.http(), messages, 4, "remote", true).route,
              HasSubstr("decode=decode-0 prefill=prefill-0"));
  EXPECT_THAT(Chat(cluster.http(), messages, 4, "local", true).route, HasSubstr("prefill=local"));
}

TEST(Serving, ThePartsOfTtftAddUpToWhatTheClientSaw) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const Json messages = {
      {{"role", "user"}, {"content", "Tell me a story about a hen, a gate and a kite."}}};
  const Json aisp = Chat(cluster.http(), messages, 8, "remote", true).usage["aisp"];
  double sum = 0;
  for (const char* part :
       {"frontend_ms", "queue_ms", "prefill_ms", "transfer_ms", "first_decode_ms"}) {
    ASSERT_TRUE(aisp.contains(part)) << aisp;
    EXPECT_GE(aisp[part].get<double>(), 0) << part;
    sum += aisp[part].get<double>();
  }
  EXPECT_NEAR(sum, aisp["ttft_ms"].get<double>(), 0.01);
  EXPECT_GT(sum, 0);
  EXPECT_GT(aisp["transfer_total_ms"].get<double>(), 0);
  EXPECT_GE(aisp["transfer_total_ms"].get<double>(), aisp["transfer_ms"].get<double>() - 0.001);
}

// One process: with one worker that does everything, and with all three roles.
class OneProcessTest : public ::testing::TestWithParam<const char*> {};

TEST_P(OneProcessTest, TellsTheSameStoryOnBothRoutes) {
  const bool split = std::string(GetParam()) == "split";
  Process all({"serve", std::string("--role=") + GetParam(), "--port=0", "--dtype=f32",
               "--no-prefix-cache", "--log-level=warning"});
  const std::string http = all.Await("http");
  ASSERT_NE(http, "");
  ASSERT_NE(all.Await("ready"), "");
  ASSERT_TRUE(Eventually([&] { return Connect(http).Request("GET", "/ready")->status == 200; }));
  const Recorded story = RecordedStories().front();
  const std::string prompt = Prose(60, 1);
  for (const char* route : {"remote", "local"}) {
    EXPECT_EQ(Chat(http, story.messages, story.completion_tokens, route, true).text, story.text)
        << route;
    const bool remote = split && std::string(route) == "remote";
    // Split, the prefill worker registers separately; until then the decode worker computes prompts
    // itself.
    const auto went_there = [&] {
      const Json usage = Complete(http, prompt, 1, route).usage;
      return (usage["aisp"]["kv_transport"] == "inproc") == remote;
    };
    EXPECT_TRUE(Eventually(went_there)) << route;
  }
  const auto answer = Connect(http).Request("GET", "/metrics");
  ASSERT_TRUE(answer);
  EXPECT_THAT(answer->body, HasSubstr("aisp_steps_total{role=\"decode\""));
  const bool prefills = answer->body.find("aisp_steps_total{role=\"prefill\"") != std::string::npos;
  EXPECT_EQ(prefills, split);
  all.Signal(SIGTERM);
  EXPECT_EQ(all.AwaitExit(std::chrono::seconds(10)), 0);
}

INSTANTIATE_TEST_SUITE_P(All, OneProcessTest, ::testing::Values("all", "split"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Serving, BadRequestsAreAnsweredWithWhatIsWrongAndTheLimit) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient client = Connect(cluster.http());
  const auto post = [&](const std::string& body) {
    auto answer =
        client.Request("POST", "/v1/completions", body, {{"content-type", "application/json"}});
    EXPECT_TRUE(answer) << answer.error().message;
    return std::pair(answer->status, answer->body);
  };
  EXPECT_THAT(post("{\"prompt\": "), ::testing::Pair(400, HasSubstr("invalid_request_error")));
  EXPECT_THAT(post(R"({"prompt": "hi", "model": "gpt-9"})"),
              ::testing::Pair(404, HasSubstr("model_not_found")));
  EXPECT_THAT(post(R"({"prompt": "hi", "temperature": -1})"),
              ::testing::Pair(400, HasSubstr("temperature")));
  std::string words = "once";
  for (int i = 0; i < 3000; ++i) words += " upon";
  const auto [status, body] = post(Json{{"prompt", words}}.dump());
  EXPECT_EQ(status, 400);
  EXPECT_THAT(body, HasSubstr("2048"));
  EXPECT_THAT(body, HasSubstr("context_length_exceeded"));
  EXPECT_THAT(post(Json{{"prompt", "once"}, {"max_tokens", 5000}}.dump()).second,
              HasSubstr("lower max_tokens"));
  EXPECT_EQ(client.Request("GET", "/nowhere")->status, 404);
  EXPECT_EQ(client.Request("GET", "/v1/completions")->status, 405);
  EXPECT_EQ(client.Request("GET", "/health")->status, 200);
  EXPECT_THAT(client.Request("GET", "/v1/models")->body, HasSubstr("\"story-7m\""));
  EXPECT_THAT(client.Request("GET", "/metrics")->body,
              HasSubstr("aisp_time_to_first_token_seconds_count"));
}

TEST(Serving, AClientThatGoesAwayGivesEveryBlockBack) {
  Cluster cluster({.decode = 1, .worker_flags = {"--no-prefix-cache"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.decode[0]->Await("admin");
  const double idle = Metric(admin, "aisp_kv_blocks_available");
  ASSERT_GT(idle, 0);
  const Json messages = {
      {{"role", "user"}, {"content", "Tell me a story about a cat, a boat and a bell."}}};
  for (const char* route : {"remote", "local"}) {
    for (int i = 0; i < 8; ++i) {
      HttpClient client = Connect(cluster.http());
      auto head = OpenChat(client, messages, 1500, route);
      ASSERT_TRUE(head) << head.error().message;
      ASSERT_TRUE(client.NextEvent());
      client.Close();
    }
    EXPECT_TRUE(Eventually([&] {
      return Metric(admin, "aisp_num_requests_running") == 0 &&
             Metric(admin, "aisp_kv_blocks_available") == idle;
    })) << route;
  }
  EXPECT_EQ(Metric(cluster.http(), "aisp_disconnected_clients_total"), 16);
}

TEST(Serving, SigtermLetsARunningStreamFinish) {
  Cluster cluster({.flags = kExact});
  ASSERT_TRUE(cluster.AwaitReady());
  const Recorded story = RecordedStories().front();
  HttpClient client = Connect(cluster.http());
  auto head = OpenChat(client, story.messages, story.completion_tokens, "remote");
  ASSERT_TRUE(head) << head.error().message;
  cluster.router->Signal(SIGTERM);
  const Reply reply = ReadStream(client, *head);
  EXPECT_EQ(reply.text, story.text);
  EXPECT_TRUE(reply.done);
  EXPECT_EQ(cluster.router->AwaitExit(std::chrono::seconds(10)), 0);
  for (auto& worker : {cluster.prefill[0].get(), cluster.decode[0].get()}) {
    worker->Signal(SIGTERM);
    EXPECT_EQ(worker->AwaitExit(std::chrono::seconds(10)), 0);
  }
}

}  // namespace
}  // namespace aisp::e2e
