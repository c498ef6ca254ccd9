// The main job over HTTP, with real processes: the same greedy story whatever way it takes, errors that help, and
// nothing left behind.
#include <gmock/gmock.h>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

using ::testing::HasSubstr;

// f32: the recorded stories were made with float32 arithmetic, so the texts are equal to the letter.
const std::vector<std::string> kExact = {"--dtype=f32"};

TEST(Serving, EveryRecordedStoryIsToldLetterByLetterOnBothRoutes) {
  Cluster cluster({.flags = kExact});
  ASSERT_TRUE(cluster.AwaitReady());
  for (const Recorded& story : RecordedStories()) {
    for (const char* route : {"remote", "local"}) {
      for (const bool stream : {true, false}) {
        const Reply reply = Chat(cluster.http(), story.messages, story.completion_tokens, route, stream);
        ASSERT_EQ(reply.error, "") << route;
        EXPECT_EQ(reply.text, story.text) << route;
        EXPECT_EQ(reply.finish_reason, story.ends ? "stop" : "length");
        EXPECT_EQ(reply.usage["completion_tokens"], story.completion_tokens);
        EXPECT_EQ(reply.done, stream);
      }
    }
  }
}

class TransportTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TransportTest, BlocksMoveOverItAndTheTextStaysTheSame) {
  const std::string transport = GetParam();
  Cluster cluster({.flags = kExact, .worker_flags = {"--transports=" + transport}});
  ASSERT_TRUE(cluster.AwaitReady());
  for (const Recorded& story : RecordedStories()) {
    const Reply reply = Chat(cluster.http(), story.messages, story.completion_tokens, "remote", true);
    ASSERT_EQ(reply.error, "");
    EXPECT_EQ(reply.text, story.text);
    const Json& aisp = reply.usage["aisp"];
    if (aisp["kv_transport"] == "") continue;  // all of it was in the decode worker's cache
    EXPECT_EQ(aisp["kv_transport"], transport);
    EXPECT_GE(aisp["kv_blocks_moved"], 1);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TransportTest, ::testing::Values("shm", "tcp"));

TEST(Serving, TheRouteHeaderSaysWhereAndWhy) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const Json messages = {{{"role", "user"}, {"content", "Tell me a story about a pig and a song."}}};
  EXPECT_THAT(Chat(cluster.http(), messages, 4, "remote", true).route, HasSubstr("decode=decode-0 prefill=prefill-0"));
  EXPECT_THAT(Chat(cluster.http(), messages, 4, "local", true).route, HasSubstr("prefill=local"));
}

TEST(Serving, ThePartsOfTtftAddUpToWhatTheClientSaw) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const Json messages = {{{"role", "user"}, {"content", "Tell me a story about a hen, a gate and a kite."}}};
  const Json aisp = Chat(cluster.http(), messages, 8, "remote", true).usage["aisp"];
  double sum = 0;
  for (const char* part : {"frontend_ms", "queue_ms", "prefill_ms", "transfer_ms", "first_decode_ms"}) {
    ASSERT_TRUE(aisp.contains(part)) << aisp;
    EXPECT_GE(aisp[part].get<double>(), 0) << part;
    sum += aisp[part].get<double>();
  }
  EXPECT_NEAR(sum, aisp["ttft_ms"].get<double>(), 0.01);
  EXPECT_GT(sum, 0);
}

TEST(Serving, OneProcessWithAllRolesTellsTheSameStory) {
  Process all({"serve", "--role=all", "--port=0", "--dtype=f32", "--log-level=warning"});
  const std::string http = all.Await("http");
  ASSERT_NE(http, "");
  ASSERT_NE(all.Await("ready"), "");
  ASSERT_TRUE(Eventually([&] { return Connect(http).Request("GET", "/ready")->status == 200; }));
  const Recorded story = RecordedStories().front();
  for (const char* route : {"remote", "local"}) {
    EXPECT_EQ(Chat(http, story.messages, story.completion_tokens, route, true).text, story.text) << route;
  }
  all.Signal(SIGTERM);
  EXPECT_EQ(all.AwaitExit(std::chrono::seconds(10)), 0);
}

TEST(Serving, BadRequestsAreAnsweredWithWhatIsWrongAndTheLimit) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient client = Connect(cluster.http());
  const auto post = [&](const std::string& body) {
    auto answer = client.Request("POST", "/v1/completions", body, {{"content-type", "application/json"}});
    EXPECT_TRUE(answer) << answer.error().message;
    return std::pair(answer->status, answer->body);
  };
  EXPECT_THAT(post("{\"prompt\": "), ::testing::Pair(400, HasSubstr("invalid_request_error")));
  EXPECT_THAT(post(R"({"prompt": "hi", "model": "gpt-9"})"), ::testing::Pair(404, HasSubstr("model_not_found")));
  EXPECT_THAT(post(R"({"prompt": "hi", "temperature": -1})"), ::testing::Pair(400, HasSubstr("temperature")));
  std::string words = "once";
  for (int i = 0; i < 3000; ++i) words += " upon";
  const auto [status, body] = post(Json{{"prompt", words}}.dump());
  EXPECT_EQ(status, 400);
  EXPECT_THAT(body, HasSubstr("2048"));
  EXPECT_THAT(body, HasSubstr("context_length_exceeded"));
  EXPECT_THAT(post(Json{{"prompt", "once"}, {"max_tokens", 5000}}.dump()).second, HasSubstr("lower max_tokens"));
  EXPECT_EQ(client.Request("GET", "/nowhere")->status, 404);
  EXPECT_EQ(client.Request("GET", "/v1/completions")->status, 405);
  EXPECT_EQ(client.Request("GET", "/health")->status, 200);
  EXPECT_THAT(client.Request("GET", "/v1/models")->body, HasSubstr("\"story-7m\""));
  EXPECT_THAT(client.Request("GET", "/metrics")->body, HasSubstr("aisp_time_to_first_token_seconds_count"));
}

TEST(Serving, AClientThatGoesAwayGivesEveryBlockBack) {
  Cluster cluster({.decode = 1, .worker_flags = {"--no-prefix-cache"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.decode[0]->Await("admin");
  const double idle = Metric(admin, "aisp_kv_blocks_available");
  ASSERT_GT(idle, 0);
  const Json messages = {{{"role", "user"}, {"content", "Tell me a story about a cat, a boat and a bell."}}};
  for (const char* route : {"remote", "local"}) {
    for (int i = 0; i < 8; ++i) {
      HttpClient client = Connect(cluster.http());
      auto head = OpenChat(client, messages, 1500, route);
      ASSERT_TRUE(head) << head.error().message;
      ASSERT_TRUE(client.NextEvent());
      client.Close();
    }
    EXPECT_TRUE(Eventually([&] {
      return Metric(admin, "aisp_num_requests_running") == 0 && Metric(admin, "aisp_kv_blocks_available") == idle;
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
