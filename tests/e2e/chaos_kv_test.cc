// Chaos among workers that give each other prefixes out of small pools, host memory and disks:
// conversations whose turns go to another worker each time, while workers are killed and stopped.
// Every text is that of a worker alone, and when it is over no block is missing anywhere.
// AISP_CHAOS_REQUESTS says how many; `make chaos` runs the long one.
#include <gmock/gmock.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/loadgen_run.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kClients = 12;
constexpr int kConversations = 10;
constexpr int kTurns = 5;
constexpr int kTokens = 12;
constexpr uint64_t kSeed = 20261125;

// Turn after turn the same beginning and more behind it.
std::string Turn(int conversation, int turn) { return Prose(60 * (turn + 1), conversation); }

// What a worker alone says to each turn.
std::vector<std::string> Alone() {
  Process server(
      {"serve", "--role=all", "--port=0", "--no-grpc", "--log-level=error", "--dtype=f32"});
  const std::string http = server.Await("http");
  const auto serves = [&] { return Connect(http).Request("GET", "/ready")->status == 200; };
  if (http.empty() || !Eventually(serves)) return {};
  std::vector<std::string> texts;
  for (int i = 0; i < kConversations * kTurns; ++i) {
    const Reply reply = Complete(http, Turn(i / kTurns, i % kTurns), kTokens, "");
    if (!reply.error.empty()) return {};
    texts.push_back(reply.text);
  }
  return texts;
}

struct KvTally {
  std::atomic<int> right{0};
  std::atomic<int> wrong{0};
  std::atomic<int> failed{0};
  std::atomic<int> filled{0};  // pulls
  int total() const { return right + wrong + failed; }
};

void RunTurn(const std::string& http, int n, const std::vector<std::string>& texts,
             KvTally* tally) {
  std::mt19937_64 dice(kSeed + static_cast<uint64_t>(n));
  const int which = static_cast<int>(dice() % (kConversations * kTurns));
  const char* const routes[] = {"", "", "remote", "local"};
  const Reply reply =
      Complete(http, Turn(which / kTurns, which % kTurns), kTokens, routes[dice() % 4]);
  if (!reply.error.empty()) {
    ADD_FAILURE() << reply.error;
    ++tally->failed;
    return;
  }
  EXPECT_EQ(reply.text, texts[static_cast<size_t>(which)]);
  ++(reply.text == texts[static_cast<size_t>(which)] ? tally->right : tally->wrong);
  const Json& aisp = reply.usage["aisp"];
  if (aisp.contains("pull") && aisp["pull"]["result"] == "filled") ++tally->filled;
}

// Kills a worker and starts it anew, or stops one for a while, whenever so many requests have
// ended.
void Disturb(Cluster* cluster, const KvTally& tally, int* kills, int* stops) {
  std::mt19937_64 random(kSeed);
  for (int at = 20; at < AISP_CHAOS_REQUESTS - 10; at += 25) {
    if (!Eventually([&] { return tally.total() >= at; }, seconds(300))) break;
    const size_t which = random() % 4;
    const bool prefill = which == 3;
    auto& worker = prefill ? cluster->prefill[0] : cluster->decode[which];
    if (random() % 3 == 0) {
      worker->Signal(SIGSTOP);
      std::this_thread::sleep_for(milliseconds(200));  // the fault itself
      worker->Signal(SIGCONT);
      ++*stops;
      continue;
    }
    worker->Signal(SIGKILL);
    worker->AwaitExit(seconds(10));
    worker = cluster->StartWorker(prefill ? "prefill" : "decode",
                                  prefill ? "prefill-0" : "decode-" + std::to_string(which));
    EXPECT_NE(worker->Await("ready", seconds(60)), "");
    ++*kills;
  }
}

TEST(ChaosKv, PrefixesInTiersOfKilledWorkersChangeNoText) {
  const std::vector<std::string> texts = Alone();
  ASSERT_EQ(texts.size(), static_cast<size_t>(kConversations * kTurns));
  TempFolder folder;
  Cluster cluster(
      {.prefill = 1,
       .decode = 3,
       .flags = {"--dtype=f32"},
       .router_flags = {"--log-level=error", "--prefix-pulls=always",
                        "--router-policy=round-robin"},
       .worker_flags = {"--log-level=error", "--kv-blocks=160", "--kv-host-memory=8MiB",
                        "--kv-disk-path=" + folder.path() + "/kv", "--kv-disk-bytes=64MiB"}});
  ASSERT_TRUE(cluster.AwaitReady());
  KvTally tally;
  std::atomic<int> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      for (int n = next++; n < AISP_CHAOS_REQUESTS; n = next++)
        RunTurn(cluster.http(), n, texts, &tally);
    });
  }
  int kills = 0, stops = 0;
  Disturb(&cluster, tally, &kills, &stops);
  for (std::thread& client : clients) client.join();
  double promoted = 0;
  for (auto* group : {&cluster.prefill, &cluster.decode}) {
    for (auto& worker : *group) {
      const std::string admin = worker->Await("admin");
      EXPECT_TRUE(Eventually([&] { return GaveEverythingBack(admin); }, seconds(60))) << admin;
      promoted += Metric(admin, "aisp_prefixes_promoted_total");
    }
  }
  std::printf(
      "%d requests: %d right, %d wrong, %d failed; %d kills, %d stops; %d prefixes pulled, %.0f "
      "brought from tiers for others by the workers that are left\n",
      tally.total(), tally.right.load(), tally.wrong.load(), tally.failed.load(), kills, stops,
      tally.filled.load(), promoted);
  EXPECT_EQ(tally.total(), AISP_CHAOS_REQUESTS);
  EXPECT_EQ(tally.wrong, 0);
  EXPECT_EQ(tally.failed, 0) << "with other workers always there, a kill costs nobody an answer";
  EXPECT_GT(kills, 2);
  EXPECT_GT(tally.filled, 0);
  EXPECT_EQ(Metric(cluster.http(), "aisp_active_requests"), 0);
}

}  // namespace
}  // namespace aisp::e2e
