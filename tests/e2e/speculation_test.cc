// Speculation over HTTP never changes an answer: requests that mix whatever can be asked for say
// with each proposer what they say without one, token for token and logprob for logprob. In one
// process, and over prefill and decode workers of which one is killed on the way; with pools so
// small that sequences are preempted, prompts that begin alike, and clients that leave.
//
// AISP_SPECULATION_REQUESTS=500 in the environment is the long run.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "common/check.h"
#include "common/random.h"
#include "common/strings.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

constexpr int kClients = 6;
// f32, as the other tests of takeovers: no row depends on the others of its step there.
const std::vector<std::string> kFlags = {"--dtype=f32", "--log-level=error"};

// One of the longest prompts, its answer and little more.
const char* const kTinyPool = "--kv-blocks=28";

int Requests() {
  const char* const said = std::getenv("AISP_SPECULATION_REQUESTS");
  const auto count = ParseIntInRange(said != nullptr ? said : "24", 1, 100'000);
  AISP_CHECK_MSG(count.has_value(), "AISP_SPECULATION_REQUESTS");
  return static_cast<int>(*count);
}

Json RandomBody(SplitMix64& random) {
  const auto one_in = [&random](uint64_t n) { return random.Below(n) == 0; };
  // Prompts of six kinds begin alike for whole blocks, and say again what came before.
  const int kind = static_cast<int>(random.Below(6));
  const std::string story = Prose(static_cast<int>(20 + 10 * random.Below(8)), kind);
  Json body = {{"prompt", one_in(2) ? story : story + ". " + story},
               {"max_tokens", 8 + random.Below(57)},
               {"temperature", one_in(3) ? 0.0 : 0.25 * static_cast<double>(1 + random.Below(4))},
               {"seed", random.Below(1'000'000)},
               {"ignore_eos", one_in(2)}};
  if (one_in(3)) body["logprobs"] = random.Below(5);
  if (one_in(3)) body["top_p"] = 0.9;
  if (one_in(4)) body["top_k"] = 1 + random.Below(40);
  if (one_in(5)) body["min_p"] = 0.05;
  if (one_in(4)) body["repetition_penalty"] = 1.2;
  if (one_in(4)) body["presence_penalty"] = 0.7;
  if (one_in(4)) body["frequency_penalty"] = 0.4;
  if (one_in(5)) body["logit_bias"] = {{"300", 5}, {"301", -100}};
  if (one_in(3)) body["min_tokens"] = 1 + random.Below(4);
  if (one_in(4)) body["n"] = 2 + random.Below(2);
  if (one_in(3)) body["stop"] = {"bridge", " the o"};
  if (one_in(4)) body["stop_token_ids"] = {300, 301, 302};
  if (one_in(3)) body["priority"] = static_cast<int>(random.Below(5)) - 2;
  if (one_in(5)) {  // min_tokens cannot be promised beside a constraint
    body["guided_regex"] = "[a-z]+( [a-z]+){3,30}\\.";
    body.erase("min_tokens");
  }
  if (one_in(6)) body["speculation"] = {{"num_speculative_tokens", 1 + random.Below(6)}};
  return body;
}

std::vector<Json> RandomBodies(int count) {
  SplitMix64 random(17);
  std::vector<Json> bodies;
  for (int i = 0; i < count; ++i) bodies.push_back(RandomBody(random));
  return bodies;
}

// What is compared of an answer; and what it says of its drafts.
struct Said {
  Json choices;
  int64_t drafted = 0, accepted = 0;
};

Said Ask(const std::string& http, const Json& body, const std::string& route) {
  HttpClient client = Connect(http);
  HttpHeaders headers = {{"content-type", "application/json"}};
  if (!route.empty()) headers.emplace_back("x-aisp-prefill", route);
  const auto answer = client.Request("POST", "/v1/completions", body.dump(), headers);
  if (!answer || answer->status != 200) {
    ADD_FAILURE() << (answer ? answer->body : answer.error().message) << "\n" << body;
    return {};
  }
  const Json json = Json::parse(answer->body);
  Said said{json["choices"]};
  const Json drafts = json["usage"].value("aisp", Json::object()).value("speculation", Json());
  if (drafts.is_object()) {
    said.drafted = drafts["drafted"];
    said.accepted = drafts["accepted"];
  }
  return said;
}

// A client that reads a few events and leaves.
void AskAndLeave(const std::string& http, Json body, int events) {
  body["stream"] = true;
  HttpClient client = Connect(http);
  const auto head = client.Open("POST", "/v1/completions", body.dump());
  for (; head && events > 0; --events) {
    const auto event = client.NextEvent();
    if (!event || !*event) break;
  }
  client.Close();
}

// All of them, several at once; every fourth time somebody else asks the same and leaves.
// `on_answer`: after each, with how many there are.
std::vector<Said> AskAll(const std::string& http, const std::vector<Json>& bodies, bool routes,
                         const std::function<void(int)>& on_answer = {}) {
  std::vector<Said> said(bodies.size());
  std::atomic<size_t> next{0};
  std::atomic<int> answered{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&] {
      for (size_t i = next++; i < bodies.size(); i = next++) {
        if (i % 4 == 3) AskAndLeave(http, bodies[i], static_cast<int>(i % 5));
        const char* const ways[] = {"", "remote", "local"};
        said[i] = Ask(http, bodies[i], routes ? ways[i % 3] : "");
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
              args.insert(args.end(), kFlags.begin(), kFlags.end());
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
    return AskAll(server.http, RandomBodies(Requests()), false);
  }();
  return said;
}

void ExpectSame(const std::vector<Said>& with, const char* where) {
  const std::vector<Json> bodies = RandomBodies(Requests());
  const std::vector<Said>& without = WithoutSpeculation();
  int64_t drafted = 0, accepted = 0;
  for (size_t i = 0; i < bodies.size(); ++i) {
    EXPECT_EQ(with[i].choices, without[i].choices)
        << where << ", request " << i << ": " << bodies[i];
    drafted += with[i].drafted;
    accepted += with[i].accepted;
  }
  EXPECT_GT(drafted, Requests()) << where;
  EXPECT_GT(accepted, 0) << where;
  EXPECT_LT(accepted, drafted) << where;
}

class Proposers : public testing::TestWithParam<const char*> {
 protected:
  // Whole drafts are verified: what is tried must not depend on how long steps take.
  static std::string Flag() {
    const std::string method = GetParam();
    std::string config = R"({"method": ")" + method + R"(", "adaptive": false)";
    if (method == "draft_model") config += R"(, "model": "story-draft-1m")";
    if (method == "eagle3" || method == "medusa" || method == "mtp")
      config += R"(, "model": "story-7m-)" + method + R"(")";
    if (method == "ngram") config += R"(, "prompt_lookup_min": 1, "prompt_lookup_max": 3)";
    return "--speculative-config=" + config + R"(, "num_speculative_tokens": 4})";
  }
};

TEST_P(Proposers, ChangeNothingInOneProcessThatPreempts) {
  OneProcess server({Flag(), kTinyPool});
  // Which requests meet is chance, and with it whether one of them has to give way.
  const auto preemptions = [&] { return Metric(server.http, "aisp_num_preemptions_total"); };
  for (int turn = 0; turn < 5 && (turn == 0 || preemptions() == 0); ++turn)
    ExpectSame(AskAll(server.http, RandomBodies(Requests()), false), "one process");
  EXPECT_GT(Metric(server.http, "aisp_prefix_cache_hits_total"), 0);
  EXPECT_GT(preemptions(), 0);
  EXPECT_EQ(Metric(server.http, "aisp_spec_decode_disabled_total"), 0);
}

TEST_P(Proposers, ChangeNothingOverWorkersThatDie) {
  std::vector<std::string> flags = kFlags;
  flags.push_back(Flag());
  flags.emplace_back(kTinyPool);
  Cluster cluster({.prefill = 1, .decode = 2, .flags = flags});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string survivor = cluster.decode[1]->Await("admin");
  const int last = Requests() / 2;
  const auto said = AskAll(cluster.http(), RandomBodies(Requests()), true, [&](int answered) {
    if (answered == last) cluster.decode[0]->Signal(SIGKILL);
  });
  ExpectSame(said, "over workers");
  EXPECT_GE(Metric(cluster.http(), "aisp_takeovers_total"), 1);
  EXPECT_GT(Metric(survivor, "aisp_prefix_cache_hits_total"), 0);
}

INSTANTIATE_TEST_SUITE_P(Speculation, Proposers,
                         testing::Values("ngram", "suffix", "draft_model", "eagle3", "medusa",
                                         "mtp"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace aisp::e2e
