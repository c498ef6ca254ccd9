// Chaos among workers that pull prefixes from each other's small pools, host memory and disks:
// conversations whose turns go to another worker each time, while workers are killed and stopped.
// Every text is that of a worker alone, and at the end no block is missing anywhere.
// AISP_CHAOS_REQUESTS says how many; `make chaos` runs the long one.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/loadgen_run.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using std::chrono::seconds;

constexpr int kClients = 12;
// Conversations at a time: between two turns of one, a worker serves so many others that its pool
// has evicted the blocks, and only the tier below has them.
constexpr int kConversations = 24;
constexpr int kTurns = 5;  // then another one begins
constexpr int kTokens = 12;
constexpr uint64_t kSeed = 20261125;

struct Ask {
  std::string prompt;
  const char* route;
};

// Each turn has the same beginning and a longer end.
std::vector<Ask> MakeAsks() {
  const char* const routes[] = {"", "", "remote", "local"};
  std::mt19937_64 dice(kSeed);
  std::vector<int> turns(kConversations, 0);
  std::vector<Ask> asks;
  for (int n = 0; n < AISP_CHAOS_REQUESTS; ++n) {
    const auto slot = static_cast<size_t>(dice() % kConversations);
    const int turn = turns[slot]++;
    const int conversation = static_cast<int>(slot) + kConversations * (turn / kTurns);
    asks.push_back({Prose(60 * (turn % kTurns + 1), conversation), routes[dice() % 4]});
  }
  return asks;
}

// Each conversation turn by turn, several clients at a time.
void AskAll(const std::vector<Ask>& asks, std::vector<std::thread>* clients,
            const std::function<void(size_t)>& ask) {
  auto next = std::make_shared<std::atomic<size_t>>(0);
  for (int i = 0; i < kClients; ++i) {
    clients->emplace_back([next, ask, n = asks.size()] {
      for (size_t at = (*next)++; at < n; at = (*next)++) ask(at);
    });
  }
}

// The answer of a single worker to each.
std::vector<std::string> Alone(const std::vector<Ask>& asks) {
  Process server(
      {"serve", "--role=all", "--port=0", "--no-grpc", "--log-level=error", "--dtype=f32"});
  const std::string http = server.Await("http");
  const auto serves = [&] { return Connect(http).Request("GET", "/ready")->status == 200; };
  if (http.empty() || !Eventually(serves)) return {};
  std::vector<std::string> texts(asks.size());
  std::vector<std::thread> clients;
  AskAll(asks, &clients, [&](size_t at) {
    const Reply reply = Complete(http, asks[at].prompt, kTokens, "");
    EXPECT_EQ(reply.error, "");
    texts[at] = reply.text;
  });
  for (std::thread& client : clients) client.join();
  return texts;
}

struct KvTally {
  std::atomic<int> right{0};
  std::atomic<int> wrong{0};
  std::atomic<int> failed{0};
  std::atomic<int> filled{0};  // pulls
  int total() const { return right + wrong + failed; }
};

void RunTurn(const std::string& http, const Ask& ask, const std::string& text, KvTally* tally) {
  const Reply reply = Complete(http, ask.prompt, kTokens, ask.route);
  if (!reply.error.empty()) {
    ADD_FAILURE() << reply.error;
    ++tally->failed;
    return;
  }
  EXPECT_EQ(reply.text, text);
  ++(reply.text == text ? tally->right : tally->wrong);
  const Json& aisp = reply.usage["aisp"];
  if (aisp.contains("pull") && aisp["pull"]["result"] == "filled") ++tally->filled;
}

// Kills and restarts a worker, or stops one for a while, after every so many finished requests.
void Disturb(Cluster* cluster, const KvTally& tally, int* kills, int* stops) {
  std::mt19937_64 random(kSeed);
  for (int at = 20; at < AISP_CHAOS_REQUESTS - 10; at += 25) {
    if (!Eventually([&] { return tally.total() >= at; }, seconds(300))) break;
    const size_t which = random() % 4;
    const bool prefill = which == 3;
    auto& worker = prefill ? cluster->prefill[0] : cluster->decode[which];
    if (random() % 3 == 0) {
      worker->Signal(SIGSTOP);
      // Until others have finished requests without it, or all wait for it.
      Eventually([&] { return tally.total() >= at + 8; }, seconds(2));
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
  const std::vector<Ask> asks = MakeAsks();
  const std::vector<std::string> texts = Alone(asks);
  ASSERT_EQ(texts.size(), asks.size());
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
  std::vector<std::thread> clients;
  AskAll(asks, &clients, [&](size_t at) { RunTurn(cluster.http(), asks[at], texts[at], &tally); });
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
  EXPECT_GT(promoted, 0) << "the load never asked for what another worker had in a tier alone";
  EXPECT_EQ(Metric(cluster.http(), "aisp_active_requests"), 0);
}

}  // namespace
}  // namespace aisp::e2e
