// Speculation over HTTP never changes an answer: requests that mix whatever can be asked for say
// with each proposer what they say without one, token for token and logprob for logprob. In one
// process, and over prefill and decode workers of which one is killed on the way; with pools so
// small that sequences are preempted, prompts that begin alike, and clients that leave.
//
// AISP_SPECULATION_REQUESTS=500 in the environment is the long run, AISP_SPECULATION_SEED=n has
// other requests.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "common/check.h"
#include "common/strings.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/mixed_requests.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

constexpr int kClients = 6;
constexpr int kManyRequests = 200;  // enough that every outcome has occurred

// Enough blocks for one of the longest prompts with its answer, and little more.
const char* const kTinyPool = "--kv-blocks=28";

int Requests() {
  const char* const said = std::getenv("AISP_SPECULATION_REQUESTS");
  const auto count = ParseIntInRange(said != nullptr ? said : "24", 1, 100'000);
  AISP_CHECK_MSG(count.has_value(), "AISP_SPECULATION_REQUESTS");
  return static_cast<int>(*count);
}

uint64_t Seed() {
  const char* const said = std::getenv("AISP_SPECULATION_SEED");
  return static_cast<uint64_t>(ParseIntInRange(said != nullptr ? said : "21", 1, 1 << 30).value());
}

const std::vector<MixedRequest>& Mixed() {
  static const std::vector<MixedRequest> requests = MixedRequests(Requests(), Seed());
  return requests;
}

// The flags of every server: f32, like the other tests of takeovers (in f32 no row depends on the
// others of its step), and an adapter.
const std::vector<std::string>& Flags() {
  static const TempFolder folder;
  static const std::vector<std::string> flags = [] {
    WriteAdapter(folder.path());
    return std::vector<std::string>{"--dtype=f32", "--log-level=error",
                                    std::string("--lora=") + kAdapterName + "=" + folder.path()};
  }();
  return flags;
}

constexpr const char* kPreempted = "preempted";
constexpr const char* kPrefixHit = "prefix hit";
constexpr const char* kSplit = "split";

// The compared parts of an answer, and its draft counts.
struct Said {
  Json choices;
  std::set<std::string> met;  // what happened to the request on its way
  int64_t drafted = 0, accepted = 0;
};

// A server that gets little CPU time may take longer than a client usually waits; each request ends
// at its own timeout.
Said Ask(const std::string& http, const Json& body, const std::string& route) {
  HttpClient client = Connect(http, std::chrono::minutes(10));
  HttpHeaders headers = {{"content-type", "application/json"}};
  if (!route.empty()) headers.emplace_back("x-aisp-prefill", route);
  const auto answer = client.Request("POST", "/v1/completions", body.dump(), headers);
  if (!answer || answer->status != 200) {
    ADD_FAILURE() << (answer ? answer->body : answer.error().message) << "\n" << body;
    return {};
  }
  const Json json = Json::parse(answer->body);
  Said said{json["choices"], {}};
  const Json& usage = json["usage"];
  const Json own = usage.value("aisp", Json::object());
  if (own.value("preemptions", 0) > 0) said.met.insert(kPreempted);
  if (usage["prompt_tokens_details"].value("cached_tokens", 0) > 0) said.met.insert(kPrefixHit);
  const std::string taken = own.value("route_taken", "");
  if (!taken.empty() && taken.find("prefill=local") == std::string::npos) said.met.insert(kSplit);
  const Json drafts = own.value("speculation", Json());
  if (drafts.is_object()) {
    said.drafted = drafts["drafted"];
    said.accepted = drafts["accepted"];
  }
  return said;
}

// A client that disconnects after a few events.
void AskAndLeave(const std::string& http, Json body, int events) {
  body["stream"] = true;
  body.erase("prompt_logprobs");
  HttpClient client = Connect(http);
  const auto head = client.Open("POST", "/v1/completions", body.dump());
  for (; head && events > 0; --events) {
    const auto event = client.NextEvent();
    if (!event || !*event) break;
  }
  client.Close();
}

// A client with a short deadline.
void AskInVain(const std::string& http, Json body) {
  body["timeout"] = 0.02;
  const auto answer = Connect(http).Request("POST", "/v1/completions", body.dump());
  if (!answer) return;
  EXPECT_TRUE(answer->status == 200 || answer->status == 504) << answer->body;
}

// All of them, several at once; with every fourth one another client sends the same and
// disconnects, or has too short a deadline. `on_answer`: called after each, with their number.
std::vector<Said> AskAll(const std::string& http, bool routes,
                         const std::function<void(int)>& on_answer = {}) {
  const std::vector<MixedRequest>& requests = Mixed();
  std::vector<Said> said(requests.size());
  std::atomic<size_t> next{0};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&] {
      for (size_t i = next++; i < requests.size(); i = next++) {
        if (i % 4 == 3) AskAndLeave(http, requests[i].body, static_cast<int>(i % 5));
        if (i % 4 == 1) AskInVain(http, requests[i].body);
        const char* const ways[] = {"", "remote", "local"};
        said[i] = Ask(http, requests[i].body, routes ? ways[i % 3] : "");
        const int count = ++answered;
        if (on_answer) on_answer(count);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  return said;
}

struct OneProcess {
  explicit OneProcess(const std::vector<std::string>& flags)
      : process(
            [&flags] {
              std::vector<std::string> args = {"serve", "--role=all", "--port=0"};
              args.insert(args.end(), Flags().begin(), Flags().end());
              args.insert(args.end(), flags.begin(), flags.end());
              return args;
            }(),
            ""),
        http(process.Await("http")) {
    process.Await("ready");
  }
  Process process;
  const std::string http;
};

const std::vector<Said>& WithoutSpeculation() {
  static const std::vector<Said> said = [] {
    OneProcess server({});
    return AskAll(server.http, false);
  }();
  return said;
}

// Features, and what happened to their requests, over all servers with speculation.
Pairs& Met() {
  static Pairs pairs;
  return pairs;
}

// `counts`: as many tokens are drafted as whole drafts have.
void ExpectSame(const std::vector<Said>& with, const char* where, bool counts = true) {
  const std::vector<MixedRequest>& requests = Mixed();
  const std::vector<Said>& without = WithoutSpeculation();
  int64_t drafted = 0, accepted = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(with[i].choices, without[i].choices)
        << where << ", request " << i << " of seed " << Seed() << ": " << requests[i].body;
    for (const std::string& each : with[i].met) Met().Note(each, requests[i].features);
    for (const std::string& each : with[i].met) Met().Note(each, with[i].met);
    drafted += with[i].drafted;
    accepted += with[i].accepted;
  }
  if (!counts) return;
  EXPECT_GT(drafted, Requests()) << where;
  EXPECT_GT(accepted, 0) << where;
  EXPECT_LT(accepted, drafted) << where;
}

// Scores of a prompt's tokens are computed on the decode worker.
bool MayMeet(const std::string& feature, const std::string& met) {
  return feature != "prompt logprobs" || met != kSplit;
}

class Proposers : public testing::TestWithParam<const char*> {
 protected:
  // In a long run every feature occurred with every outcome.
  static void TearDownTestSuite() {
    const auto* const suite = testing::UnitTest::GetInstance()->current_test_suite();
    if (Requests() < kManyRequests || suite->test_to_run_count() < suite->total_test_count())
      return;
    for (const std::string& feature : AllFeatures()) {
      for (const char* const met : {kPreempted, kPrefixHit, kSplit})
        EXPECT_EQ(Met().Count(feature, met) > 0, MayMeet(feature, met)) << feature << ", " << met;
    }
  }

  static constexpr std::string_view kAdaptive = " adaptive";
  static bool Adaptive() { return std::string_view(GetParam()).ends_with(kAdaptive); }

  // Whole drafts are verified, so that the tokens tried do not depend on step times; or as many as
  // seem to pay.
  static std::string Flag() {
    std::string method = GetParam();
    if (Adaptive()) method.resize(method.size() - kAdaptive.size());
    std::string config = R"({"method": ")" + method + R"(", "adaptive": )";
    config += Adaptive() ? "true" : "false";
    if (method == "draft_model") config += R"(, "model": "story-draft-1m")";
    if (method == "eagle3" || method == "medusa" || method == "mtp")
      config += R"(, "model": "story-7m-)" + method + R"(")";
    if (method == "ngram") config += R"(, "prompt_lookup_min": 1, "prompt_lookup_max": 3)";
    return "--speculative-config=" + config + R"(, "num_speculative_tokens": 4})";
  }
};

// Kills that one of two decode workers which has a stream, which must still complete; returns the
// admin address of the other one.
std::string KillUnderAStream(const Cluster& cluster) {
  const Json body = {{"prompt", Prose(30, 1)},
                     {"max_tokens", 300},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stream", true}};
  HttpClient client = Connect(cluster.http(), std::chrono::minutes(10));
  const auto head = client.Open("POST", "/v1/completions", body.dump());
  AISP_CHECK(head && head->status == 200);
  const bool first = head->Header("x-aisp-route").find("decode=decode-0") != std::string::npos;
  cluster.decode[first ? 0 : 1]->Signal(SIGKILL);
  const Reply reply = ReadStream(client, *head);
  EXPECT_TRUE(reply.done) << reply.error;
  return cluster.decode[first ? 1 : 0]->Await("admin");
}

TEST_P(Proposers, ChangeNothingInOneProcessThatPreempts) {
  OneProcess server({Flag(), kTinyPool});
  // Which requests run together is chance, and with it whether one of them is preempted.
  const auto preemptions = [&] { return Metric(server.http, "aisp_num_preemptions_total"); };
  for (int turn = 0; turn < 5 && (turn == 0 || preemptions() == 0); ++turn)
    ExpectSame(AskAll(server.http, false), "one process", !Adaptive());
  EXPECT_GT(Metric(server.http, "aisp_prefix_cache_hits_total"), 0);
  EXPECT_GT(preemptions(), 0);
  EXPECT_EQ(Metric(server.http, "aisp_spec_decode_disabled_total"), 0);
}

TEST_P(Proposers, ChangeNothingOverWorkersThatDie) {
  std::vector<std::string> flags = Flags();
  flags.push_back(Flag());
  flags.emplace_back(kTinyPool);
  Cluster cluster({.prefill = 1, .decode = 2, .flags = flags});
  ASSERT_TRUE(cluster.AwaitReady());
  const int last = Requests() / 2;
  std::string survivor;
  const auto said = AskAll(cluster.http(), true, [&](int answered) {
    if (answered == last) survivor = KillUnderAStream(cluster);
  });
  ExpectSame(said, "over workers", !Adaptive());
  EXPECT_GE(Metric(cluster.http(), "aisp_takeovers_total"), 1);
  EXPECT_GT(Metric(survivor, "aisp_prefix_cache_hits_total"), 0);
}

// The smaller one of a request's limit and the server's applies; neither is an error.
TEST(Speculation, MoreThanTheServersLimitIsCapped) {
  OneProcess server({R"(--speculative-config={"method": "draft_model", "model": "story-draft-1m",)"
                     R"( "adaptive": false, "num_speculative_tokens": 2})"});
  HttpClient client = Connect(server.http);
  const auto per_step = [&](int asked) {
    const Json body = {{"prompt", Prose(30, 1)},
                       {"max_tokens", 60},
                       {"temperature", 0},
                       {"ignore_eos", true},
                       {"speculation", {{"num_speculative_tokens", asked}}}};
    const auto answer = client.Request("POST", "/v1/completions", body.dump());
    EXPECT_TRUE(answer && answer->status == 200) << asked;
    const Json drafts = Json::parse(answer->body)["usage"]["aisp"].value("speculation", Json());
    if (!drafts.is_object()) return 0.0;
    return drafts["drafted"].get<double>() / drafts["drafts"].get<double>();
  };
  EXPECT_EQ(per_step(0), 0);
  EXPECT_EQ(per_step(1), 1);
  for (const int asked : {2, 3, 64}) {
    const double tokens = per_step(asked);
    EXPECT_GT(tokens, 1) << asked;
    EXPECT_LE(tokens, 2) << asked;
  }
}

TEST(MixedRequests, HoldEveryPair) {
  Pairs asked;
  for (const MixedRequest& each : Mixed()) asked.Note(each.features);
  for (const std::string& one : AllFeatures()) {
    for (const std::string& other : AllFeatures())
      EXPECT_EQ(asked.Count(one, other) > 0, Together(one, other)) << one << " and " << other;
  }
}

INSTANTIATE_TEST_SUITE_P(Speculation, Proposers,
                         testing::Values("ngram", "suffix", "draft_model", "eagle3", "medusa",
                                         "mtp", "suffix adaptive", "eagle3 adaptive"),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

}  // namespace
}  // namespace aisp::e2e
