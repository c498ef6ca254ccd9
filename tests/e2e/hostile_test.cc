// Hostile clients and overloaded machines, with real processes; tests/net has the detailed cases.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

void ExpectServes(const std::string& http, const char* route = "") {
  const Recorded story = RecordedStories().front();
  const Reply reply = Chat(http, story.messages, story.completion_tokens, route, true);
  EXPECT_EQ(reply.error, "");
  EXPECT_EQ(reply.text, story.text);
}

TEST(Hostile, AWholeAnswerThatGrowsBeyondItsBoundEndsAndAStreamDoesNot) {
  Cluster cluster({.prefill = 0, .router_flags = {"--http.max_answer=64KiB"}});
  ASSERT_TRUE(cluster.AwaitReady());
  Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 200}, {"n", 8}, {"logprobs", 5},
               {"ignore_eos", true},           {"temperature", 1}};
  const auto refused = Connect(cluster.http()).Request("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(refused) << refused.error().message;
  EXPECT_EQ(refused->status, 400) << refused->body;
  EXPECT_THAT(refused->body, HasSubstr("http.max_answer"));
  body["stream"] = true;
  HttpClient client = Connect(cluster.http());
  const auto head = client.Open("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(head);
  const Reply reply = ReadStream(client, *head);
  EXPECT_EQ(reply.error, "");
  EXPECT_TRUE(reply.done);
  // The memory is released: the next whole answer of a moderate size is served.
  body = {{"prompt", "Once upon a time"}, {"max_tokens", 8}};
  EXPECT_EQ(Connect(cluster.http()).Request("POST", "/v1/completions", body.dump())->status, 200);
}

TEST(Hostile, LogprobsOfAPromptCountForEachChoiceThatSaysThem) {
  Cluster cluster({.prefill = 0, .router_flags = {"--http.max_answer=1MiB"}});
  ASSERT_TRUE(cluster.AwaitReady());
  Json body = {{"prompt", Prose(400, 1)}, {"max_tokens", 1}, {"prompt_logprobs", 20}};
  const auto one = Connect(cluster.http()).Request("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(one);
  EXPECT_EQ(one->status, 200) << one->body;
  // They are computed once and sent 64 times.
  body["n"] = 64;
  const auto many = Connect(cluster.http()).Request("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(many);
  EXPECT_EQ(many->status, 400) << many->body.size();
  EXPECT_THAT(many->body, HasSubstr("http.max_answer"));
}

TEST(Hostile, AThousandAbandonedStreamsLeaveNothingBehind) {
  Cluster cluster({.flags = {"--dtype=f32"}, .worker_flags = {"--no-prefix-cache"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.decode[0]->Await("admin");
  const std::string prefill = cluster.prefill[0]->Await("admin");
  const double idle = Metric(admin, "aisp_kv_blocks_available");
  const double idle_prefill = Metric(prefill, "aisp_kv_blocks_available");
  const Json body = {{"prompt", Prose(120, 1)}, {"max_tokens", 1000}, {"stream", true}};
  const std::string text = body.dump();
  for (int i = 0; i < 1000; ++i) {
    HttpClient client = Connect(cluster.http());
    // Some disconnect at once, some while their prompt is being prefilled, some after the first
    // tokens.
    const HttpHeaders headers = {{"x-aisp-prefill", i % 2 == 0 ? "remote" : "local"}};
    if (i % 10 == 0) {
      const auto head = client.Open("POST", "/v1/completions", text, headers);
      ASSERT_TRUE(head) << head.error().message;
    } else {
      ASSERT_TRUE(client.SendRaw(
          "POST /v1/completions HTTP/1.1\r\nHost: a\r\nx-aisp-prefill: " + headers[0].second +
          "\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" + text));
    }
    client.Close();
  }
  EXPECT_TRUE(Eventually([&] {
    return Metric(cluster.http(), "aisp_active_requests") == 0 &&
           Metric(admin, "aisp_num_requests_running") == 0 &&
           Metric(admin, "aisp_kv_blocks_available") == idle &&
           Metric(admin, "aisp_kv_blocks_quarantined") == 0 &&
           Metric(prefill, "aisp_kv_blocks_available") == idle_prefill;
  })) << Metric(admin, "aisp_kv_blocks_available")
      << " of " << idle;
  ExpectServes(cluster.http(), "remote");
}

TEST(Hostile, AFullDiskForLogsStopsNobody) {
  const auto start = [](std::vector<std::string> args) {
    args.insert(args.begin(), "serve");
    args.push_back("--dtype=f32");
    args.push_back("--log-level=debug");
    return std::make_unique<Process>(std::move(args), "/dev/full");
  };
  auto router = start({"--role=router", "--port=0", "--router-listen=127.0.0.1:0", "--no-grpc"});
  const std::string http = router->Await("http");
  ASSERT_NE(http, "");
  auto prefill = start({"--role=prefill", "--routers=" + router->Await("workers")});
  auto decode = start({"--role=decode", "--routers=" + router->Await("workers")});
  ASSERT_NE(prefill->Await("ready"), "");
  ASSERT_NE(decode->Await("ready"), "");
  ExpectServes(http, "remote");
  EXPECT_GT(Metric(http, "aisp_log_lines_dropped_total"), 0) << "the one place left to say so";
  EXPECT_GT(Metric(decode->Await("admin"), "aisp_log_lines_dropped_total"), 0);
}

TEST(Hostile, ClientsThatReadByteByByteDelayNobodyAndLeaveNothingBehind) {
  Cluster cluster({.flags = {"--dtype=f32"},
                   .router_flags = {"--http.max_unsent=4096", "--http.write_timeout=500ms"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.decode[0]->Await("admin");
  std::vector<HttpClient> slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(Connect(cluster.http()));
    const int small = 1;
    setsockopt(slow.back().fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    const Json body = {{"prompt", Prose(10, i)},
                       {"max_tokens", 1000},
                       {"ignore_eos", true},
                       {"logprobs", 5},
                       {"stream", true}};
    const std::string text = body.dump();
    ASSERT_TRUE(slow.back().SendRaw("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
                                    std::to_string(text.size()) + "\r\n\r\n" + text));
    char byte = 0;
    ASSERT_TRUE(Eventually([&] { return recv(slow.back().fd(), &byte, 1, MSG_DONTWAIT) == 1; }));
  }
  ExpectServes(cluster.http());
  EXPECT_TRUE(Eventually(
      [&] {
        char byte = 0;
        for (HttpClient& client : slow) recv(client.fd(), &byte, 1, MSG_DONTWAIT);
        return Metric(cluster.http(), "aisp_active_requests") == 0 &&
               Metric(admin, "aisp_num_requests_running") == 0;
      },
      seconds(60)));
}

TEST(Hostile, GarbageHalfClosedSocketsAndSlowLorisDoNotKeepOthersFromBeingServed) {
  Cluster cluster({.flags = {"--dtype=f32"}, .router_flags = {"--http.read_timeout=2s"}});
  ASSERT_TRUE(cluster.AwaitReady());
  for (const char* garbage :
       {"\x16\x03\x01\x02\x00\x01\x00", "GET\r\n\r\n", "{\"prompt\":1}\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"}) {
    HttpClient client = Connect(cluster.http());
    ASSERT_TRUE(client.SendRaw(garbage));
    shutdown(client.fd(), SHUT_WR);
    const auto answer = client.ReceiveRaw();
    if (answer && !answer->empty()) {
      EXPECT_THAT(*answer, ::testing::StartsWith("HTTP/1.1 ")) << garbage;
    }
  }
  std::vector<HttpClient> half;
  const Json body = {{"prompt", Prose(30, 2)}, {"max_tokens", 1500}, {"stream", true}};
  const std::string text = body.dump();
  for (int i = 0; i < 20; ++i) {
    half.push_back(Connect(cluster.http()));
    ASSERT_TRUE(half.back().SendRaw("POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: " +
                                    std::to_string(text.size()) + "\r\n\r\n" + text));
    shutdown(half.back().fd(), SHUT_WR);
  }
  std::vector<HttpClient> loris;
  for (int i = 0; i < 200; ++i) {
    loris.push_back(Connect(cluster.http()));
    ASSERT_TRUE(loris.back().SendRaw("POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Slow: "));
  }
  const auto before = std::chrono::steady_clock::now();
  ExpectServes(cluster.http());
  EXPECT_LT(std::chrono::steady_clock::now() - before, seconds(15));
  for (HttpClient& client : loris) {
    const auto answer = client.ReceiveRaw();
    if (answer && !answer->empty()) {
      EXPECT_THAT(*answer, HasSubstr("408"));
    }
  }
  EXPECT_TRUE(Eventually([&] { return Metric(cluster.http(), "aisp_active_requests") == 0; }));
}

}  // namespace
}  // namespace aisp::e2e
