// A request whose prompt crashes prefill workers, with real processes: each worker that computes
// the prompt is killed, as a crash would end it. The request is refused after two of them, with the
// number of losses in the error, and no other request fails.
#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr int kPrefills = 3;
constexpr const char* kPoison = "poison-1";

// Kills every prefill worker as soon as it computes something, until told to stop. Only the
// poisoned request asks for prefill workers.
class Crashes {
 public:
  explicit Crashes(const Cluster& cluster) {
    for (const auto& worker : cluster.prefill) {
      threads_.emplace_back([this, process = worker.get(), admin = worker->Await("admin")] {
        const auto computes = [&] { return Metric(admin, "aisp_num_requests_running") > 0; };
        const auto seen = [&] { return stop_ || computes(); };
        if (!Eventually(seen, std::chrono::minutes(2), milliseconds(2)) || stop_) return;
        process->Signal(SIGKILL);
        ++ended_;
      });
    }
  }
  ~Crashes() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  int ended() const { return ended_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<int> ended_{0};
  std::vector<std::thread> threads_;
};

// One unrelated client after another; returns how many got a text other than theirs.
int ServeHonest(const std::string& http, const std::atomic<bool>& stop) {
  const Recorded story = RecordedStories().front();
  int wrong = 0;
  while (!stop) {
    const Reply reply = Chat(http, story.messages, story.completion_tokens, "local", true);
    if (reply.text != story.text) ++wrong;
  }
  return wrong;
}

TEST(Poison, ARequestThatEndsPrefillWorkersIsRefusedAfterTwoAndNobodyElsePays) {
  // Steps of 16 tokens: a prompt takes long enough to be noticed.
  Cluster cluster({.prefill = kPrefills,
                   .decode = 2,
                   .flags = {"--dtype=f32"},
                   .worker_flags = {"--max-prefill-chunk=16"}});
  ASSERT_TRUE(cluster.AwaitReady());
  std::vector<double> idle;
  for (const auto& worker : cluster.decode)
    idle.push_back(Metric(worker->Await("admin"), "aisp_kv_blocks_available"));

  std::atomic<bool> stop{false};
  std::future<int> honest =
      std::async(std::launch::async, [&] { return ServeHonest(cluster.http(), stop); });
  Crashes crashes(cluster);
  const Json body = {{"prompt", Prose(1500, 9)}, {"max_tokens", 4}};
  const auto refused = Connect(cluster.http())
                           .Request("POST", "/v1/completions", body.dump(),
                                    {{"x-aisp-prefill", "remote"}, {"x-request-id", kPoison}});
  crashes.Stop();
  stop = true;
  ASSERT_TRUE(refused) << refused.error().message;
  EXPECT_EQ(refused->status, 500) << refused->body;
  EXPECT_THAT(refused->body, HasSubstr("workers end")) << "it says why";
  EXPECT_EQ(crashes.ended(), 2);
  EXPECT_EQ(Metric(cluster.http(), "aisp_poison_requests_total"), 1);
  EXPECT_EQ(honest.get(), 0);

  // The remaining worker is used, and no block that was granted to the dead ones is missing.
  for (const auto& worker : cluster.decode) EXPECT_TRUE(worker->Running());
  const Recorded story = RecordedStories().front();
  const Reply after = Chat(cluster.http(), story.messages, story.completion_tokens, "remote", true);
  EXPECT_EQ(after.error, "");
  EXPECT_EQ(after.text, story.text);
  EXPECT_TRUE(Eventually([&] {
    for (size_t i = 0; i < idle.size(); ++i) {
      const std::string admin = cluster.decode[i]->Await("admin");
      if (Metric(admin, "aisp_kv_blocks_available") != idle[i] ||
          Metric(admin, "aisp_kv_blocks_quarantined") != 0) {
        return false;
      }
    }
    return true;
  }));
}

}  // namespace
}  // namespace aisp::e2e
