// Processes that die or stop under load: every stream ends with the right story or a clear error by
// its deadline, nothing leaks, and a restarted worker is used again.
#include <gmock/gmock.h>

#include <future>
#include <thread>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

constexpr int kStreams = 16;

// Starts streams and calls `fault` when each has its first event; returns how they ended.
std::vector<Reply> RunStreams(const Cluster& cluster, const std::vector<Recorded>& stories,
                              const std::string& route, const std::function<void()>& fault) {
  std::vector<std::promise<void>> started(kStreams);
  std::vector<std::future<Reply>> replies;
  for (int i = 0; i < kStreams; ++i) {
    replies.push_back(std::async(std::launch::async, [&, i] {
      const Recorded& story = stories[static_cast<size_t>(i) % stories.size()];
      HttpClient client = Connect(cluster.http());
      auto head = OpenChat(client, story.messages, story.completion_tokens, route);
      started[static_cast<size_t>(i)].set_value();
      return head ? ReadStream(client, *head)
                  : Reply{0, "", "", {}, head.error().message, "", false};
    }));
  }
  for (auto& promise : started) promise.get_future().wait();
  fault();
  std::vector<Reply> out;
  for (auto& reply : replies) out.push_back(reply.get());
  return out;
}

int CountRight(const std::vector<Reply>& replies, const std::vector<Recorded>& stories) {
  int right = 0;
  for (size_t i = 0; i < replies.size(); ++i) {
    const Reply& r = replies[i];
    if (r.error.empty()) {
      EXPECT_EQ(r.text, stories[i % stories.size()].text) << "stream " << i;
      EXPECT_TRUE(r.done) << "stream " << i;
      ++right;
    }
  }
  return right;
}

// All blocks of the worker are available again and none is in quarantine.
bool AllBlocksBack(const std::string& admin, double idle) {
  return Metric(admin, "aisp_kv_blocks_available") == idle &&
         Metric(admin, "aisp_kv_blocks_quarantined") == 0;
}

// Whether the prefill worker gets a prompt. Each call sends a prompt that differs from its first
// word on: one that the decode worker has computed before is not prefilled remotely.
bool PrefillsAPrompt(const Cluster& cluster) {
  static int calls = 0;
  const std::string text =
      std::to_string(++calls) + " times: tell me a story about a crow, a well and a coin.";
  const Json prompt = {{{"role", "user"}, {"content", text}}};
  const Reply reply = Chat(cluster.http(), prompt, 4, "remote", true);
  return reply.route.find("prefill=prefill-0") != std::string::npos;
}

TEST(Faults, AKilledPrefillWorkerCostsNoStreamItsStory) {
  Cluster cluster({.flags = {"--dtype=f32"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.decode[0]->Await("admin");
  const double idle = Metric(admin, "aisp_kv_blocks_available");
  const auto stories = RecordedStories();
  const auto replies =
      RunStreams(cluster, stories, "remote", [&] { cluster.prefill[0]->Signal(SIGKILL); });
  EXPECT_EQ(CountRight(replies, stories), kStreams);
  EXPECT_TRUE(Eventually([&] { return AllBlocksBack(admin, idle); }));

  cluster.prefill[0] = cluster.StartWorker("prefill", "prefill-0");
  ASSERT_NE(cluster.prefill[0]->Await("ready"), "");
  EXPECT_TRUE(Eventually([&] { return PrefillsAPrompt(cluster); }));
}

TEST(Faults, AKilledDecodeWorkerIsReplacedAndTheStreamsGoOn) {
  Cluster cluster({.decode = 2, .flags = {"--dtype=f32"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const auto stories = RecordedStories();
  const auto replies =
      RunStreams(cluster, stories, "remote", [&] { cluster.decode[0]->Signal(SIGKILL); });
  EXPECT_EQ(CountRight(replies, stories), kStreams);

  cluster.decode[0] = cluster.StartWorker("decode", "decode-0");
  ASSERT_NE(cluster.decode[0]->Await("ready"), "");
  const Recorded& story = stories.front();
  EXPECT_EQ(Chat(cluster.http(), story.messages, story.completion_tokens, "remote", true).text,
            story.text);
}

TEST(Faults, WithoutAnyDecodeWorkerRequestsAreRefusedAtOnceAndServedAgainLater) {
  Cluster cluster({.flags = {"--dtype=f32"}});
  ASSERT_TRUE(cluster.AwaitReady());
  cluster.decode[0]->Signal(SIGKILL);
  ASSERT_TRUE(
      Eventually([&] { return Connect(cluster.http()).Request("GET", "/ready")->status == 503; }));
  HttpClient client = Connect(cluster.http());
  const auto refused = client.Request("POST", "/v1/completions", R"({"prompt": "Once"})");
  ASSERT_TRUE(refused) << refused.error().message;
  EXPECT_EQ(refused->status, 503);
  EXPECT_NE(refused->Header("retry-after"), "");

  cluster.decode[0] = cluster.StartWorker("decode", "decode-0");
  ASSERT_NE(cluster.decode[0]->Await("ready"), "");
  const Recorded story = RecordedStories().front();
  EXPECT_EQ(Chat(cluster.http(), story.messages, story.completion_tokens, "", true).text,
            story.text);
}

TEST(Faults, AStoppedPrefillWorkerDelaysButNeverCorruptsAndIsUsedAgain) {
  Cluster cluster({.flags = {"--dtype=f32"}, .worker_flags = {"--lease=500ms"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.decode[0]->Await("admin");
  const double idle = Metric(admin, "aisp_kv_blocks_available");
  const auto stories = RecordedStories();
  const auto replies =
      RunStreams(cluster, stories, "remote", [&] { cluster.prefill[0]->Signal(SIGSTOP); });
  EXPECT_EQ(CountRight(replies, stories), kStreams);
  cluster.prefill[0]->Signal(SIGCONT);
  EXPECT_TRUE(Eventually([&] { return AllBlocksBack(admin, idle); }));
  EXPECT_TRUE(Eventually([&] { return PrefillsAPrompt(cluster); }));
}

TEST(Faults, AStoppedDecodeWorkerIsReplacedAndWhatItSaysLaterIsIgnored) {
  Cluster cluster({.decode = 2, .flags = {"--dtype=f32"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const auto stories = RecordedStories();
  const auto replies =
      RunStreams(cluster, stories, "", [&] { cluster.decode[0]->Signal(SIGSTOP); });
  EXPECT_EQ(CountRight(replies, stories), kStreams);
  cluster.decode[0]->Signal(SIGCONT);
  const std::string admin = cluster.decode[0]->Await("admin");
  EXPECT_TRUE(Eventually([&] { return Metric(admin, "aisp_num_requests_running") == 0; }));
  EXPECT_TRUE(Eventually([&] { return Connect(admin).Request("GET", "/ready")->status == 200; }));
}

TEST(Faults, APoolFarTooSmallPreemptsAndChangesNoWord) {
  Cluster cluster({.flags = {"--dtype=f32", "--kv-blocks=48"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.decode[0]->Await("admin");
  const auto stories = RecordedStories();
  for (const char* route : {"remote", "local"}) {
    const auto replies = RunStreams(cluster, stories, route, [] {});
    EXPECT_EQ(CountRight(replies, stories), kStreams) << route;
  }
  EXPECT_GT(Metric(admin, "aisp_num_preemptions_total"), 0);
  EXPECT_TRUE(Eventually([&] { return AllBlocksBack(admin, 48); }));
}

}  // namespace
}  // namespace aisp::e2e
