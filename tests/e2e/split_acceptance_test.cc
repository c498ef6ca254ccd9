// Drafts are the same whether another worker has computed the prompt or one process does
// everything: in both a head sees the same positions of the prompt, and the first step after it
// verifies a draft. Counted over the same requests, in each answer's draft counts and in the
// worker's counters.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

constexpr int kRequests = 16;
// f32: no row depends on the others of its step. Whole drafts are verified, whatever a step takes.
const std::vector<std::string> kFlags = {"--dtype=f32", "--log-level=error"};

std::string FlagOf(const std::string& method, const std::string& more = "") {
  std::string config = R"({"method": ")" + method + R"(", "adaptive": false)" + more;
  if (method == "draft_model") config += R"(, "model": "story-draft-1m")";
  if (method == "eagle3" || method == "medusa" || method == "mtp")
    config += R"(, "model": "story-7m-)" + method + R"(")";
  if (method == "ngram") config += R"(, "prompt_lookup_min": 1, "prompt_lookup_max": 3)";
  return "--speculative-config=" + config + R"(, "num_speculative_tokens": 4})";
}

// The beginning of a story after zero to three others, so that prompts begin differently.
std::vector<Json> Bodies() {
  std::vector<std::string> stories;
  std::ifstream in(AISP_SOURCE_DIR "/models/eval.jsonl");
  for (std::string line; std::getline(in, line);) stories.push_back(Json::parse(line)["story"]);
  std::vector<Json> bodies;
  for (size_t i = 0; i < kRequests; ++i) {
    std::string prompt;
    for (size_t before = 0; before < i % 4; ++before)
      prompt += stories.at((i + kRequests + before * 7) % stories.size()) + "\n\n";
    const std::string& story = stories.at(i);
    prompt += story.substr(0, story.size() / 3);
    bodies.push_back({{"prompt", prompt},
                      {"max_tokens", 40},
                      {"temperature", i % 2 == 0 ? 0.0 : 0.8},
                      {"seed", i},
                      {"ignore_eos", true}});
  }
  return bodies;
}

struct Count {
  std::vector<std::string> texts;
  std::vector<std::pair<int, int>> each;  // drafted and accepted, by request
  double drafted = 0, accepted = 0;

  double rate() const { return accepted / std::max(1.0, drafted); }
};

// One after the other; `worker`: the one that draws the tokens.
Count AskAll(const std::string& http, const std::string& worker, bool remote) {
  Count count;
  HttpClient client = Connect(http);
  for (const Json& body : Bodies()) {
    HttpHeaders headers = {{"content-type", "application/json"}};
    if (remote) headers.emplace_back("x-aisp-prefill", "remote");
    const auto answer = client.Request("POST", "/v1/completions", body.dump(), headers);
    if (!answer || answer->status != 200) {
      ADD_FAILURE() << (answer ? answer->body : answer.error().message);
      return count;
    }
    const Json json = Json::parse(answer->body);
    count.texts.push_back(json["choices"][0]["text"]);
    const Json drafts = json["usage"]["aisp"].value("speculation", Json());
    count.each.emplace_back(0, 0);
    if (!drafts.is_object()) continue;
    count.each.back() = {drafts["drafted"].get<int>(), drafts["accepted"].get<int>()};
    count.drafted += drafts["drafted"].get<double>();
    count.accepted += drafts["accepted"].get<double>();
  }
  EXPECT_EQ(Metric(worker, "aisp_spec_decode_num_draft_tokens_total"), count.drafted);
  EXPECT_EQ(Metric(worker, "aisp_spec_decode_num_accepted_tokens_total"), count.accepted);
  return count;
}

Count InOneProcess(const std::string& flag) {
  Process server({"serve", "--role=all", "--port=0", kFlags[0], kFlags[1], flag});
  const std::string http = server.Await("http");
  server.Await("ready");
  return AskAll(http, http, false);
}

// `others`: flags of the prefill worker.
Count OverWorkers(const std::string& flag, const std::vector<std::string>& others) {
  Cluster cluster({.prefill = 0, .decode = 0, .flags = kFlags});
  cluster.prefill.push_back(cluster.StartWorker("prefill", "prefill-0", others));
  cluster.decode.push_back(cluster.StartWorker("decode", "decode-0", {flag}));
  EXPECT_TRUE(cluster.AwaitReady());
  const std::string worker = cluster.decode[0]->Await("admin");
  const Count count = AskAll(cluster.http(), worker, true);
  EXPECT_EQ(Metric(worker, "aisp_remote_prefills_total"), kRequests);
  return count;
}

class SplitAcceptanceOf : public testing::TestWithParam<const char*> {};

TEST_P(SplitAcceptanceOf, IsThatOfOneProcess) {
  const std::string flag = FlagOf(GetParam());
  const Count one = InOneProcess(flag), split = OverWorkers(flag, {flag});
  EXPECT_EQ(one.texts, split.texts);
  EXPECT_GT(one.accepted, kRequests);
  EXPECT_EQ(one.each, split.each);
  RecordProperty("one_process", std::to_string(one.rate()));
  RecordProperty("split", std::to_string(split.rate()));
  std::printf("%s: one process %.0f of %.0f (%.4f), split %.0f of %.0f (%.4f)\n", GetParam(),
              one.accepted, one.drafted, one.rate(), split.accepted, split.drafted, split.rate());
}

// A prefill worker that does not know features sends none; the decode worker's drafter starts
// without them.
TEST(SplitAcceptance, OfAPrefillWorkerWithoutAProposerTextsAreTheSame) {
  const std::string flag = FlagOf("mtp");
  const Count one = InOneProcess(flag), split = OverWorkers(flag, {});
  EXPECT_EQ(one.texts, split.texts);
  EXPECT_GT(split.accepted, kRequests);
  EXPECT_LE(split.accepted, one.accepted);
}

INSTANTIATE_TEST_SUITE_P(Speculation, SplitAcceptanceOf,
                         testing::Values("ngram", "suffix", "draft_model", "eagle3", "medusa",
                                         "mtp"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace aisp::e2e
