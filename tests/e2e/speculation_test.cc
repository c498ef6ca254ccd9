// Speculation over HTTP never changes an answer: requests that mix whatever can be asked for say
// with each proposer what they say without one, token for token and logprob for logprob. In one
// process, and over prefill and decode workers of which one is killed on the way; with pools so
// small that sequences are preempted, prompts that begin alike, and clients that leave. On the CPU,
// and on a GPU where there is one.
//
// AISP_SPECULATION_REQUESTS=500 in the environment is the long run, AISP_SPECULATION_SEED=n has
// other requests.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <tuple>

#include "common/check.h"
#include "common/strings.h"
#include "kernels/cuda/load.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/mixed_requests.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

constexpr int kClients = 6;
constexpr int kManyRequests = 200;  // enough that every outcome has occurred
constexpr const char* kCpu = "cpu";
constexpr const char* kGpu = "cuda";

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

// Whether a server can compute on a GPU here: NOT_FOUND without a driver or the backend.
Status GpuBackend() {
  const std::string folders[] = {AISP_BINARY_DIR "/lib"};
  AISP_RETURN_IF_ERROR(FindCudaFunction("libaisp_cuda.so", kCudaBackendAbiSymbol, folders));
  return {};
}

const std::string& AdapterFolder() {
  static const TempFolder folder;
  static const bool written = (WriteAdapter(folder.path()), true);
  (void)written;
  return folder.path();
}

// The flags of every server: f32, like the other tests of takeovers (in f32 no row depends on the
// others of its step), and an adapter. A GPU has the CPU's blocks and chunks, so that pools are as
// tight and prompts as divided as there.
std::vector<std::string> FlagsOn(const std::string& device) {
  std::vector<std::string> flags = {"--dtype=f32", "--log-level=error", "--device=" + device,
                                    std::string("--lora=") + kAdapterName + "=" + AdapterFolder()};
  if (device == kGpu) {
    for (const char* const flag : {"--block-size=16", "--max-prefill-chunk=64", "--forced-runs=on"})
      flags.emplace_back(flag);
  }
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
  OneProcess(const std::string& device, const std::vector<std::string>& flags)
      : process(
            [&] {
              std::vector<std::string> args = {"serve", "--role=all", "--port=0"};
              const std::vector<std::string> common = FlagsOn(device);
              args.insert(args.end(), common.begin(), common.end());
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

// Without drafts of any kind, in a pool with room for all.
const std::vector<Said>& WithoutSpeculation(const std::string& device) {
  static std::map<std::string, std::vector<Said>> answers;
  std::vector<Said>& said = answers[device];
  if (said.empty()) {
    OneProcess server(device, {"--forced-runs=off", "--kv-blocks=1024"});
    said = AskAll(server.http, false);
  }
  return said;
}

// Features, and what happened to their requests, over all servers of a device with speculation.
Pairs& Met(const std::string& device) {
  static std::map<std::string, Pairs> pairs;
  return pairs[device];
}

// `counts`: as many tokens are drafted as whole drafts have.
void ExpectSame(const std::string& device, const std::vector<Said>& with, const char* where,
                bool counts = true) {
  constexpr int kMostShown = 5;
  const std::vector<MixedRequest>& requests = Mixed();
  const std::vector<Said>& without = WithoutSpeculation(device);
  int64_t drafted = 0, accepted = 0;
  int different = 0;
  std::map<std::string, int> met;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (with[i].choices != without[i].choices && ++different <= kMostShown) {
      EXPECT_EQ(with[i].choices, without[i].choices)
          << where << ", request " << i << " of seed " << Seed() << ": " << requests[i].body;
    }
    for (const std::string& each : with[i].met) {
      Met(device).Note(each, requests[i].features);
      Met(device).Note(each, with[i].met);
      ++met[each];
    }
    drafted += with[i].drafted;
    accepted += with[i].accepted;
  }
  EXPECT_EQ(different, 0) << where << ", of " << requests.size();
  std::printf(
      "%s, %s: %d of %zu differ; %d preempted, %d prefix hits, %d split; %lld of %lld "
      "draft tokens accepted\n",
      device.c_str(), where, different, requests.size(), met[kPreempted], met[kPrefixHit],
      met[kSplit], static_cast<long long>(accepted), static_cast<long long>(drafted));
  if (!counts) return;
  EXPECT_GT(drafted, Requests()) << where;
  EXPECT_GT(accepted, 0) << where;
  EXPECT_LT(accepted, drafted) << where;
}

// Scores of a prompt's tokens are computed on the decode worker.
bool MayMeet(const std::string& feature, const std::string& met) {
  return feature != "prompt logprobs" || met != kSplit;
}

// Device and method.
class Proposers : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    if (Device() != kGpu) return;
    const Status backend = GpuBackend();
    if (!backend && backend.error().code == Code::kNotFound)
      GTEST_SKIP() << backend.error().message;
    ASSERT_TRUE(backend.has_value()) << backend.error().message;
  }

  // In a long run every feature occurred with every outcome, with one method already.
  static void TearDownTestSuite() {
    if (Requests() < kManyRequests || !HasWholeMethod()) return;
    for (Pairs* const pairs : {&Met(kCpu), &Met(kGpu)}) {
      if (pairs->Empty()) continue;
      for (const std::string& feature : AllFeatures()) {
        for (const char* const met : {kPreempted, kPrefixHit, kSplit})
          EXPECT_EQ(pairs->Count(feature, met) > 0, MayMeet(feature, met))
              << feature << ", " << met;
      }
    }
  }

  // Whether all tests of some method run (in this process, if they are divided between several).
  static bool HasWholeMethod() {
    const auto* const suite = testing::UnitTest::GetInstance()->current_test_suite();
    std::map<std::string, int> tests;
    for (int i = 0; i < suite->total_test_count(); ++i) {
      const testing::TestInfo* const test = suite->GetTestInfo(i);
      if (test->should_run() && ++tests[test->value_param()] == kTestsOfMethod) return true;
    }
    return false;
  }
  static constexpr int kTestsOfMethod = 2;

  static const std::string& Device() { return std::get<0>(GetParam()); }
  static constexpr std::string_view kAdaptive = " adaptive", kPart = " part";
  static bool Adaptive() { return std::get<1>(GetParam()).ends_with(kAdaptive); }

  // Whole drafts are verified, so that the tokens tried do not depend on step times; or as many as
  // seem to pay.
  static std::string Flag() {
    std::string method = std::get<1>(GetParam());
    method.resize(std::min(method.size(), method.find(' ')));
    std::string config = R"({"method": ")" + method + R"(", "adaptive": )";
    config += Adaptive() ? "true" : "false";
    if (method == "draft_model") config += R"(, "model": "story-draft-1m")";
    if (std::get<1>(GetParam()).ends_with(kPart)) config += R"(, "draft_vocab_size": 1000)";
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
  OneProcess server(Device(), {Flag(), kTinyPool});
  // Which requests run together is chance, and with it whether one of them is preempted.
  const auto preemptions = [&] { return Metric(server.http, "aisp_num_preemptions_total"); };
  for (int turn = 0; turn < 5 && (turn == 0 || preemptions() == 0); ++turn)
    ExpectSame(Device(), AskAll(server.http, false), "one process", !Adaptive());
  EXPECT_GT(Metric(server.http, "aisp_prefix_cache_hits_total"), 0);
  EXPECT_GT(preemptions(), 0);
  // Processes that share a GPU slow each other down.
  const char* const why = Device() == kGpu ? R"(reason="failed")" : "";
  EXPECT_EQ(Metric(server.http, "aisp_spec_decode_disabled_total", why), 0);
}

TEST_P(Proposers, ChangeNothingOverWorkersThatDie) {
  std::vector<std::string> flags = FlagsOn(Device());
  flags.push_back(Flag());
  flags.emplace_back(kTinyPool);
  Cluster cluster({.prefill = 1, .decode = 2, .flags = flags});
  ASSERT_TRUE(cluster.AwaitReady());
  const int last = Requests() / 2;
  std::string survivor;
  const auto said = AskAll(cluster.http(), true, [&](int answered) {
    if (answered == last) survivor = KillUnderAStream(cluster);
  });
  ExpectSame(Device(), said, "over workers", !Adaptive());
  EXPECT_GE(Metric(cluster.http(), "aisp_takeovers_total"), 1);
  EXPECT_GT(Metric(survivor, "aisp_prefix_cache_hits_total"), 0);
}

// The smaller one of a request's limit and the server's applies; neither is an error.
TEST(Speculation, MoreThanTheServersLimitIsCapped) {
  OneProcess server(kCpu,
                    {R"(--speculative-config={"method": "draft_model", "model": "story-draft-1m",)"
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

std::vector<std::string> Methods() {
  return {"ngram",  "suffix", "draft_model",     "draft_model part", "eagle3",
          "medusa", "mtp",    "suffix adaptive", "eagle3 adaptive"};
}

std::string NameOf(const testing::TestParamInfo<Proposers::ParamType>& each) {
  std::string name = std::get<1>(each.param);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Speculation, Proposers,
                         testing::Combine(testing::Values(kCpu), testing::ValuesIn(Methods())),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(GpuSpeculation, Proposers,
                         testing::Combine(testing::Values(kGpu), testing::ValuesIn(Methods())),
                         NameOf);

}  // namespace
}  // namespace aisp::e2e
