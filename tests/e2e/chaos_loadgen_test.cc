// The load client against a cluster whose workers are killed and restarted, and whose every process
// is replaced: each request has one end, completed answers equal those of an undisturbed run, and
// no block is lost. AISP_CHAOS_REQUESTS as in chaos_test.cc.
#include <gmock/gmock.h>

#include <future>
#include <random>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/loadgen_run.h"

namespace aisp::e2e {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// Greedy, so that a request gets the same answer from every worker.
std::string Arguments(const std::string& http, int requests) {
  return "--base-url http://" + http + " --wait-ready 20 --seed 5 --num-prompts " +
         std::to_string(requests) +
         " --input-len 120 --range-ratio 0.8 --output-len 60 --temperature 0 --ignore-eos "
         "--max-concurrency 16 ";
}

// Kills a random worker whenever the clients have received another `every` tokens, and restarts it
// at once, until `done`; returns how many it killed.
int KillWorkers(Cluster& cluster, double every, const std::function<bool()>& done) {
  std::mt19937_64 random(20261121);
  const double before = Metric(cluster.http(), "aisp_generation_tokens_total");
  int kills = 0;
  for (double at = before + every;; at += every) {
    EXPECT_TRUE(Eventually(
        [&] { return done() || Metric(cluster.http(), "aisp_generation_tokens_total") >= at; },
        seconds(120)));
    if (done() || ::testing::Test::HasFailure()) return kills;
    const bool prefill = random() % 2 == 0;
    const size_t which = random() % 2;
    auto& worker = (prefill ? cluster.prefill : cluster.decode)[which];
    worker->Signal(SIGKILL);
    worker->AwaitExit(seconds(5));
    worker = cluster.StartWorker(prefill ? "prefill" : "decode",
                                 (prefill ? "prefill-" : "decode-") + std::to_string(which));
    EXPECT_NE(worker->Await("ready"), "");
    ++kills;
  }
}

TEST(ChaosLoadgen, EveryRequestEndsOnceWithTheUndisturbedTextWhileWorkersAreKilled) {
  Cluster cluster({.prefill = 2,
                   .decode = 2,
                   .flags = {"--dtype=f32"},
                   .router_flags = {"--log-level=error"},
                   .worker_flags = {"--log-level=error"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const TempFile calm("calm.json"), stormy("stormy.json");
  const LoadgenRun first = RunLoadgen(Arguments(cluster.http(), AISP_CHAOS_REQUESTS) +
                                      "--save-detailed --result-filename " + calm.path());
  ASSERT_EQ(first.code, 0) << first.output;

  auto second = std::async(std::launch::async, [&] {
    return RunLoadgen(Arguments(cluster.http(), AISP_CHAOS_REQUESTS) +
                      "--cancel-rate 0.1 --save-result --result-filename " + stormy.path() +
                      " --compare " + calm.path());
  });
  const int kills = KillWorkers(
      cluster, 1500, [&] { return second.wait_for(seconds(0)) == std::future_status::ready; });
  const LoadgenRun ran = second.get();
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("all equal"));
  const Json result = ReadJson(stormy);
  ASSERT_TRUE(result.is_object());
  EXPECT_EQ(result["failed"], 0);
  EXPECT_EQ(result["completed"].get<int>() + result["cancelled"].get<int>(), AISP_CHAOS_REQUESTS);
  EXPECT_GT(result["cancelled"].get<int>(), 0);
  EXPECT_GT(kills, 2);
  RecordProperty("kills", kills);
  for (auto* group : {&cluster.prefill, &cluster.decode}) {
    for (auto& worker : *group) {
      const std::string admin = worker->Await("admin");
      EXPECT_TRUE(Eventually([&] { return GaveEverythingBack(admin); })) << admin;
    }
  }
  EXPECT_TRUE(Eventually([&] { return Metric(cluster.http(), "aisp_active_requests") == 0; }));
}

// Replaces every process of an `aisp up` while the load client asks over `surface`: no request may
// fail.
void RollUnderLoad(const std::string& surface) {
  const TempFile log(surface + "_up.log"), calm(surface + "_before.json"),
      rolled(surface + "_rolled.json");
  Process up({"up", "--port=0", "--prefill=1", "--decode=1", "--dtype=f32", "--drain-timeout=10s"},
             log.path());
  const auto text = [&] { return log.Read(); };
  const std::string http = up.Await("http", seconds(60));
  const std::string grpc = up.Await("grpc", seconds(60));
  ASSERT_FALSE(http.empty() || grpc.empty()) << text();
  const std::string arguments = Arguments(http, 60) + "--prompt-format ids --backend " + surface +
                                (surface == "aisp-grpc" ? " --grpc-address " + grpc : "");
  const LoadgenRun first =
      RunLoadgen(arguments + " --save-detailed --result-filename " + calm.path());
  ASSERT_EQ(first.code, 0) << first.output;
  // The load continues until every process was replaced.
  bool replaced = false;
  up.Signal(SIGHUP);
  for (int turns = 0; !replaced && turns < 30; ++turns) {
    const LoadgenRun ran = RunLoadgen(arguments + " --save-result --result-filename " +
                                      rolled.path() + " --compare " + calm.path());
    ASSERT_EQ(ran.code, 0) << ran.output << text();
    EXPECT_EQ(ReadJson(rolled)["completed"], 60);
    replaced = text().find("every process was replaced") != std::string::npos;
  }
  EXPECT_TRUE(replaced) << text();
  up.Signal(SIGTERM);
  EXPECT_EQ(up.AwaitExit(seconds(20)), 0);
}

TEST(ChaosLoadgen, ARollingRestartOfEveryProcessFailsNoRequestOverHttp) { RollUnderLoad("openai"); }

TEST(ChaosLoadgen, ARollingRestartOfEveryProcessFailsNoRequestOverGrpc) {
  RollUnderLoad("aisp-grpc");
}

}  // namespace
}  // namespace aisp::e2e
