// Workers are killed and restarted at random while clients ask and sometimes disconnect. Whatever
// happens, every request has one end, completed answers are exactly right, and at the end no block
// is missing anywhere. AISP_CHAOS_REQUESTS (a compile definition) says how many; `make chaos` runs
// the long one.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "common/check.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/loadgen_run.h"

namespace aisp::e2e {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kClients = 16;
constexpr uint64_t kSeed = 20261121;

struct Tally {
  std::atomic<int> completed{0};
  std::atomic<int> cancelled{0};
  std::atomic<int> refused{0};  // an error answer or an error event
  std::atomic<int> wrong{0};
  int total() const { return completed + cancelled + refused + wrong; }
};

// One request from its start to its one end.
void RunOne(const std::string& http, const Recorded& story, uint64_t dice, Tally* tally) {
  const char* const routes[] = {"", "remote", "local"};
  HttpClient client = Connect(http);
  const auto head = OpenChat(client, story.messages, story.completion_tokens, routes[dice % 3]);
  if (!head) {
    ADD_FAILURE() << "the router did not answer: " << head.error().message;
    ++tally->wrong;
    return;
  }
  if (dice / 3 % 10 == 0) {
    for (uint64_t events = dice / 30 % 40; events > 0; --events) {
      const auto event = client.NextEvent();
      if (!event || !*event) break;
    }
    client.Close();
    ++tally->cancelled;
    return;
  }
  const Reply reply = ReadStream(client, *head);
  if (reply.error.empty() && reply.done && reply.status == 200) {
    EXPECT_EQ(reply.text, story.text);
    ++(reply.text == story.text ? tally->completed : tally->wrong);
  } else if (!reply.error.empty() && !reply.error.starts_with("connection")) {
    // An explicit error: a status, or an event followed by [DONE].
    EXPECT_TRUE(reply.status != 200 || reply.done) << reply.error;
    ++tally->refused;
  } else {
    ADD_FAILURE() << "a silent end: status " << reply.status << ", " << reply.error;
    ++tally->wrong;
  }
}

TEST(Chaos, EveryRequestHasOneEndAndNoBlockIsLostWhileWorkersAreKilledAtRandom) {
  Cluster cluster({.prefill = 2,
                   .decode = 2,
                   .flags = {"--dtype=f32"},
                   .router_flags = {"--log-level=error"},
                   .worker_flags = {"--log-level=error"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const auto stories = RecordedStories();
  Tally tally;
  std::atomic<int> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&] {
      for (int n = next++; n < AISP_CHAOS_REQUESTS; n = next++) {
        std::mt19937_64 dice(kSeed + static_cast<uint64_t>(n));
        RunOne(cluster.http(), stories[static_cast<size_t>(n) % stories.size()], dice(), &tally);
      }
    });
  }
  // Kills another worker after every so many finished requests; a moment later it is restarted
  // under its name.
  std::mt19937_64 random(kSeed);
  int kills = 0;
  for (int at = 20; at < AISP_CHAOS_REQUESTS - 10; at += 25) {
    if (!Eventually([&] { return tally.total() >= at; }, seconds(120))) break;
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
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(tally.total(), AISP_CHAOS_REQUESTS);
  EXPECT_EQ(tally.wrong, 0);
  EXPECT_GT(kills, 2);
  EXPECT_GT(tally.cancelled, 0);
  // With a second worker of each kind always running, a kill fails no request.
  EXPECT_EQ(tally.refused, 0);
  RecordProperty("completed", tally.completed);
  for (auto* group : {&cluster.prefill, &cluster.decode}) {
    for (auto& worker : *group) {
      const std::string admin = worker->Await("admin");
      const Recorded& story = stories.front();
      EXPECT_TRUE(Eventually([&] { return GaveEverythingBack(admin); })) << admin;
      EXPECT_EQ(Chat(cluster.http(), story.messages, story.completion_tokens, "", true).text,
                story.text);
    }
  }
  EXPECT_EQ(Metric(cluster.http(), "aisp_active_requests"), 0);
}

// Reads a stream of choices to its end: text, logprobs and finish reason of each. `after_event`
// gets the number of events so far.
void ReadChoices(HttpClient& client, std::map<int, Json>* choices,
                 const std::function<void(int)>& after_event) {
  int events = 0;
  for (;;) {
    const auto event = client.NextEvent();
    ASSERT_TRUE(event) << event.error().message;
    if (!*event) break;
    if ((*event)->data == "[DONE]") continue;
    const Json body = Json::parse((*event)->data);
    ASSERT_FALSE(body.contains("error")) << body;
    for (const Json& choice : body["choices"]) {
      Json& out = choices->try_emplace(choice["index"], Json::object()).first->second;
      out["text"] = out.value("text", "") + choice["text"].get<std::string>();
      if (choice.contains("logprobs") && choice["logprobs"].is_object()) {
        for (const Json& value : choice["logprobs"]["token_logprobs"])
          out["logprobs"].push_back(value);
      }
      if (choice["finish_reason"].is_string()) out["finish_reason"] = choice["finish_reason"];
    }
    after_event(++events);
  }
}

// What a takeover must carry over besides the tokens: penalties that count emitted tokens but not
// the prompt, the noise of each choice, a stop string that began before and ended after, and
// logprobs.
TEST(Chaos, ATakeoverOfThreeChoicesWithPenaltiesStopStringsAndLogprobsChangesNothing) {
  Cluster cluster({.decode = 2, .flags = {"--dtype=f32"}, .router_flags = {"--log-level=error"}});
  ASSERT_TRUE(cluster.AwaitReady());
  Json request = {{"prompt", "Once upon a time there was a fox who met an owl near a bridge and"},
                  {"n", 3},
                  {"seed", 99},
                  {"temperature", 0.9},
                  {"top_p", 0.95},
                  {"presence_penalty", 0.4},
                  {"frequency_penalty", 0.3},
                  {"repetition_penalty", 1.1},
                  {"logprobs", 2},
                  {"max_tokens", 400},
                  {"min_tokens", 300},
                  {"ignore_eos", true}};
  const auto whole = [&] {
    HttpClient client = Connect(cluster.http());
    const auto answer = client.Request("POST", "/v1/completions", request.dump());
    AISP_CHECK(answer && answer->status == 200);
    return Json::parse(answer->body)["choices"];
  };
  // A stop string late in the undisturbed run's text, across a token border.
  const std::string text = whole()[0]["text"];
  ASSERT_GT(text.size(), 700u);
  request["stop"] = {text.substr(text.size() - 60, 17)};
  const Json expected = whole();

  request["stream"] = true;
  HttpClient client = Connect(cluster.http());
  const auto head = client.Open("POST", "/v1/completions", request.dump());
  ASSERT_TRUE(head);
  const bool first = std::string(head->Header("x-aisp-route")).find("decode=decode-0") == 0;
  std::map<int, Json> choices;
  ReadChoices(client, &choices, [&](int events) {
    if (events == 60) cluster.decode[first ? 0 : 1]->Signal(SIGKILL);
  });
  EXPECT_GE(Metric(cluster.http(), "aisp_takeovers_total"), 1);
  ASSERT_EQ(choices.size(), 3u);
  for (const auto& [index, choice] : choices) {
    const Json& want = expected[static_cast<size_t>(index)];
    EXPECT_EQ(choice["text"], want["text"]) << index;
    EXPECT_EQ(choice["finish_reason"], want["finish_reason"]) << index;
    EXPECT_EQ(choice["logprobs"], want["logprobs"]["token_logprobs"]) << index;
  }
  EXPECT_EQ(expected[0]["finish_reason"], "stop");
}

}  // namespace
}  // namespace aisp::e2e
