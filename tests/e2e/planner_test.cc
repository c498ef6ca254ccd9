// `aisp planner` with a real cluster whose mix of load changes.
#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <mutex>
#include <thread>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Clients that send one request after the other: prompts of `words` words, answers of `tokens`.
class Mix {
 public:
  Mix(std::string address, int clients, int words, int tokens)
      : address_(std::move(address)), words_(words), tokens_(tokens) {
    for (int i = 0; i < clients; ++i) threads_.emplace_back([this, i] { Run(i); });
  }
  ~Mix() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  std::vector<std::string> failures() const {
    std::lock_guard lock(mutex_);
    return failures_;
  }
  int done() const { return done_; }

 private:
  void Run(int client) {
    HttpClient http = Connect(address_);
    for (int turn = 0; !stop_; ++turn) {
      const Json body = {{"prompt", Prose(words_, 1000 * client + turn)},
                         {"max_tokens", tokens_},
                         {"temperature", 0},
                         {"ignore_eos", true}};
      const auto answer = http.Request("POST", "/v1/completions", body.dump());
      const bool ok = answer && answer->status == 200 &&
                      Json::parse(answer->body)["usage"]["completion_tokens"] == tokens_;
      ++done_;
      if (ok) continue;
      std::lock_guard lock(mutex_);
      failures_.push_back(answer ? answer->body : answer.error().message);
      return;
    }
  }
  const std::string address_;
  const int words_, tokens_;
  std::atomic<bool> stop_{false};
  std::atomic<int> done_{0};
  mutable std::mutex mutex_;
  std::vector<std::string> failures_;
  std::vector<std::thread> threads_;
};

struct Roles {
  int prefill = 0;
  int decode = 0;
  int parked = 0;
  int other = 0;
};
Roles RolesOf(const std::string& admin) {
  Roles roles;
  const auto answer = Connect(admin).Request("GET", "/admin/workers");
  if (!answer) return roles;
  const Json body = Json::parse(answer->body);
  for (const Json& w : body["workers"]) {
    const std::string role = w["role"];
    const std::string state = w["state"];
    int& count = state != "ready" && state != "parked" && !state.starts_with("busy")
                     ? roles.other
                     : (role == "prefill"  ? roles.prefill
                        : role == "decode" ? roles.decode
                                           : roles.parked);
    ++count;
  }
  return roles;
}

// Milliseconds of a decode step of one row, as the decode worker with the most measurements reports
// it.
double DecodeStepMs(const std::string& admin) {
  const auto answer = Connect(admin).Request("GET", "/admin/workers");
  const Json body = Json::parse(answer->body);
  double ms = 1;
  int64_t most = 0;
  for (const Json& w : body["workers"]) {
    if (w["role"] != "decode" || !w["cost"].is_object()) continue;
    const int64_t steps = w["cost"]["steps"];
    if (steps <= most) continue;
    most = steps;
    const Json& step = w["cost"]["decode_step_ms"];
    ms = step.value("base", 0.0) + step.value("per_row", 0.0);
  }
  return ms;
}

std::string Text(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

// The best move depends on this machine's step times, so this test is run separately: `make
// planner-follows`.
TEST(Planner, DISABLED_FollowsAChangeOfTheMixOfARealClusterAndComesBack) {
  Cluster cluster({.prefill = 2, .decode = 2});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.router->Await("admin");
  const auto prefills = [&](int least, int at_most) {
    const Roles roles = RolesOf(admin);
    EXPECT_LE(roles.prefill + roles.decode + roles.parked + roles.other, 4);
    return roles.other == 0 && roles.prefill >= least && roles.prefill <= at_most;
  };
  auto answers = std::make_unique<Mix>(cluster.http(), 6, 12, 150);
  ASSERT_TRUE(Eventually([&] { return answers->done() >= 24; }));
  // Costs such that prompts together with streams are too slow, and streams alone are not.
  const int tpot = static_cast<int>(std::ceil(1.6 * DecodeStepMs(admin)));
  const TempFolder folder;
  Process planner(
      {"planner", "--router=http://" + admin, "--ttft-ms=10000",
       "--tpot-ms=" + std::to_string(tpot), "--no-park", "--interval=500", "--log-level=debug"},
      folder.path() + "/planner.log");
  ASSERT_NE(planner.Await("admin"), "");
  const auto follows = [&](int least, int at_most) {
    return Eventually([&] { return prefills(least, at_most); }, seconds(30));
  };
  auto since = std::chrono::steady_clock::now();
  EXPECT_TRUE(follows(0, 1));
  std::printf("fewer prefill workers for answers after %.1f s (TPOT limit %d ms)\n", Seconds(since),
              tpot);
  answers->Stop();
  EXPECT_THAT(answers->failures(), IsEmpty());

  auto prompts = std::make_unique<Mix>(cluster.http(), 6, 280, 2);
  since = std::chrono::steady_clock::now();
  EXPECT_TRUE(follows(2, 3));
  std::printf("more prefill workers for prompts after %.1f s\n", Seconds(since));
  prompts->Stop();
  EXPECT_THAT(prompts->failures(), IsEmpty());

  answers = std::make_unique<Mix>(cluster.http(), 6, 12, 150);
  since = std::chrono::steady_clock::now();
  EXPECT_TRUE(follows(0, 1));
  std::printf("back after %.1f s\n", Seconds(since));
  answers->Stop();
  EXPECT_THAT(answers->failures(), IsEmpty());
  EXPECT_GE(Metric(planner.Await("admin"), "aisp_planner_role_changes_total"), 2);
  planner.Signal(SIGTERM);
  EXPECT_EQ(planner.AwaitExit(seconds(10)), 0);
}

TEST(Planner, ADryRunChangesNothingAndParkingLeavesOneWorker) {
  Cluster cluster({.prefill = 1, .decode = 2});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.router->Await("admin");
  const TempFolder folder;
  const auto start = [&](const char* extra) {
    std::vector<std::string> args = {"planner", "--router=http://" + admin, "--interval=100",
                                     "--park-after=1", "--log-level=info"};
    if (*extra != '\0') args.emplace_back(extra);
    return std::make_unique<Process>(args, folder.path() + "/planner.log");
  };
  auto dry = start("--dry-run");
  const std::string metrics = dry->Await("admin");
  ASSERT_NE(metrics, "");
  EXPECT_TRUE(Eventually([&] { return Metric(metrics, "aisp_planner_wanted_replicas") == 1; },
                         seconds(20)));
  EXPECT_TRUE(Eventually(
      [&] {
        return Text(folder.path() + "/planner.log").find("would change a role") !=
               std::string::npos;
      },
      seconds(20)));
  EXPECT_EQ(RolesOf(admin).parked, 0);
  dry->Signal(SIGTERM);
  EXPECT_EQ(dry->AwaitExit(seconds(10)), 0);
  auto planner = start("");
  EXPECT_TRUE(Eventually(
      [&] {
        const Roles roles = RolesOf(admin);
        return roles.parked == 2 && roles.decode == 1;
      },
      seconds(40)));
  const Reply reply = Chat(cluster.http(), RecordedStories()[0].messages, 16, "", true);
  EXPECT_EQ(reply.status, 200) << "one is left";
  // A second planner sees what the first one has done.
  auto second = start("");
  EXPECT_NE(second->Await("admin"), "");
  EXPECT_TRUE(Eventually(
      [&] { return Connect(second->Await("admin")).Request("GET", "/ready")->status == 200; }));
}

TEST(Planner, SaysWhatIsWrong) {
  EXPECT_EQ(RunAisp("planner --router=nowhere:x").code, 2);
  const Ran wrong = RunAisp("planner --max-workers=2 --min-workers=3");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.output, HasSubstr("--min-workers is 3 and --max-workers 2"));
  Process lonely({"planner", "--router=http://127.0.0.1:1", "--log-level=error"});
  const std::string admin = lonely.Await("admin");
  ASSERT_NE(admin, "");
  EXPECT_TRUE(Eventually([&] { return Metric(admin, "aisp_planner_blind") == 1; }));
  EXPECT_EQ(Connect(admin).Request("GET", "/ready")->status, 503);
}

}  // namespace
}  // namespace aisp::e2e
