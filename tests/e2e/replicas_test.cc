// Several routers that share nothing but their workers: one is killed under load.
#include <gmock/gmock.h>

#include <atomic>
#include <csignal>
#include <sstream>
#include <thread>

#include "common/strings.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

constexpr int kRouters = 3;
constexpr int kClients = 9;
constexpr int kRequests = 90;
constexpr int kKillAfter = 30;  // answers
constexpr auto kPatience = std::chrono::seconds(60);

struct Heard {
  std::string text;
  bool whole = false;
};

// One streamed answer, or the part that came before the connection broke.
Heard Ask(const std::string& address, const std::string& body, const std::string& key) {
  Heard heard;
  const auto parts = Split(address, ':');
  const auto port = ParseIntInRange(parts.back(), 1, 65535);
  auto client =
      HttpClient::Connect(std::string(parts.front()), static_cast<uint16_t>(*port), kPatience);
  if (!client) return heard;
  const auto head = client->Open("POST", "/v1/completions", body, {{"idempotency-key", key}});
  if (!head || head->status != 200) return heard;
  while (true) {
    const auto event = client->NextEvent();
    if (!event || !*event) return heard;
    if ((*event)->data == "[DONE]") break;
    const Json json = Json::parse((*event)->data);
    if (json.contains("error")) return heard;
    for (const Json& choice : json["choices"]) heard.text += choice["text"].get<std::string>();
  }
  heard.whole = true;
  return heard;
}

struct Replicas {
  std::vector<std::unique_ptr<Process>> routers;
  std::vector<std::string> http;
  std::vector<std::unique_ptr<Process>> workers;

  bool Start() {
    std::string addresses;
    for (int i = 0; i < kRouters; ++i) {
      routers.push_back(std::make_unique<Process>(std::vector<std::string>{
          "serve", "--role=router", "--port=0", "--router-listen=127.0.0.1:0", "--dtype=f32",
          "--log-level=error"}));
      http.push_back(routers.back()->Await("http"));
      addresses += (i > 0 ? "," : "") + routers.back()->Await("workers");
    }
    for (const std::string id : {"prefill-0", "decode-0", "decode-1"}) {
      workers.push_back(std::make_unique<Process>(std::vector<std::string>{
          "serve", "--role=" + id.substr(0, id.find('-')), "--worker-id=" + id,
          "--routers=" + addresses, "--dtype=f32", "--log-level=error"}));
    }
    // Every router has every worker.
    return Eventually([&] {
      for (const std::string& address : http) {
        if (Metric(address, "aisp_router_workers_ready") < 3) return false;
      }
      return true;
    });
  }
};

TEST(Replicas, OneThatIsKilledCostsNoAnswerThatIsAskedForAgainUnderItsKey) {
  Replicas replicas;
  ASSERT_TRUE(replicas.Start());
  const auto body = [](int n) {
    return Json{{"prompt", Prose(30, n)},
                {"max_tokens", 60},
                {"temperature", 1.0},
                {"ignore_eos", true},
                {"stream", true}}
        .dump();
  };
  std::atomic<int> next{0}, answered{0}, broken_elsewhere{0}, asked_again{0};
  std::vector<std::string> texts(kRequests);
  std::vector<std::string> beginnings(kRequests);  // the part that came before the break
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&] {
      for (int n = next++; n < kRequests; n = next++) {
        for (int attempt = 0; attempt < kRouters; ++attempt) {
          const int at = (n + attempt) % kRouters;
          const Heard heard =
              Ask(replicas.http[static_cast<size_t>(at)], body(n), "key-" + std::to_string(n));
          if (heard.whole) {
            texts[static_cast<size_t>(n)] = heard.text;
            ++answered;
            break;
          }
          if (at != 0) ++broken_elsewhere;
          ++asked_again;
          beginnings[static_cast<size_t>(n)] = heard.text;
        }
      }
    });
  }
  EXPECT_TRUE(Eventually([&] { return answered >= kKillAfter; }, kPatience));
  replicas.routers[0]->Signal(SIGKILL);
  for (std::thread& client : clients) client.join();

  EXPECT_EQ(answered, kRequests);
  EXPECT_EQ(broken_elsewhere, 0) << "only streams of the router that was killed may break";
  EXPECT_GT(asked_again, 0);
  int compared = 0;
  for (int n = 0; n < kRequests; ++n) {
    const std::string& text = texts[static_cast<size_t>(n)];
    EXPECT_TRUE(text.starts_with(beginnings[static_cast<size_t>(n)])) << n;
    compared += beginnings[static_cast<size_t>(n)].empty() ? 0 : 1;
  }
  // A third request, through yet another router, gets the same.
  for (int n = 0; n < kRequests; n += 7) {
    const Heard again = Ask(replicas.http[1], body(n), "key-" + std::to_string(n));
    EXPECT_EQ(again.text, texts[static_cast<size_t>(n)]);
  }
  RecordProperty("asked_again", asked_again.load());
  RecordProperty("compared_beginnings", compared);
}

// How many answers decode workers have replayed, by how far they were.
double SaidAgain(const Replicas& replicas, const std::string& state) {
  double all = 0;
  for (const auto& worker : replicas.workers) {
    const auto metrics = Connect(worker->Await("admin")).Request("GET", "/metrics");
    std::istringstream lines(metrics ? metrics->body : "");
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("aisp_answers_repeated_total") &&
          line.find("state=\"" + state + "\"") != std::string::npos)
        all += std::strtod(line.c_str() + line.rfind(' '), nullptr);
    }
  }
  return all;
}

bool Known(const Replicas& replicas, int router, int answers) {
  return Eventually([&] {
    return Metric(replicas.http[static_cast<size_t>(router)], "aisp_router_kept_answers") ==
           answers;
  });
}

TEST(Replicas, AnAnswerIsKeptForWhoeverAsksUnderItsKey) {
  Replicas replicas;
  ASSERT_TRUE(replicas.Start());
  const auto ask = [&](int router, const Json& body) {
    return Connect(replicas.http[static_cast<size_t>(router)])
        .Request("POST", "/v1/completions", body.dump(), {{"idempotency-key", "k"}});
  };
  const Json body{{"prompt", Prose(30, 1)}, {"max_tokens", 40},  {"temperature", 1.0}, {"n", 2},
                  {"logprobs", 1},          {"ignore_eos", true}};
  const auto first = ask(0, body);
  ASSERT_TRUE(first);
  ASSERT_EQ(first->status, 200) << first->body;
  const Json choices = Json::parse(first->body)["choices"];
  for (const int router : {1, 2, 0}) {
    ASSERT_TRUE(Known(replicas, router, 2));
    const auto again = ask(router, body);
    ASSERT_TRUE(again);
    EXPECT_EQ(Json::parse(again->body)["choices"], choices) << "text and logprobs";
  }
  EXPECT_EQ(SaidAgain(replicas, "ended"), 6);
  Json other = body;
  other["max_tokens"] = 41;
  const auto refused = ask(2, other);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, 409) << refused->body;
  EXPECT_NE(refused->body.find("idempotency-key"), std::string::npos);
}

// The stream breaks in its middle; the other router is asked while the worker may still compute the
// rest.
TEST(Replicas, AStreamThatBreaksGoesOnElsewhere) {
  Replicas replicas;
  ASSERT_TRUE(replicas.Start());
  const std::string body = Json{
      {"prompt", Prose(30, 1)},
      {"max_tokens", 1900},
      {"temperature", 1.0},
      {"ignore_eos", true},
      {"stream", true}}.dump();
  HttpClient client = Connect(replicas.http[0]);
  ASSERT_TRUE(client.Open("POST", "/v1/completions", body, {{"idempotency-key", "k"}}));
  std::string heard;
  for (int event = 0; event < 20; ++event) {
    const auto next = client.NextEvent();
    ASSERT_TRUE(next && *next);
    const Json json = Json::parse((*next)->data);
    for (const Json& choice : json["choices"]) heard += choice["text"].get<std::string>();
  }
  // A second client attaches: its stream starts from the beginning.
  ASSERT_TRUE(Known(replicas, 1, 1) && Known(replicas, 2, 1));
  Heard beside;
  std::thread listener([&] { beside = Ask(replicas.http[2], body, "k"); });
  EXPECT_TRUE(Eventually([&] { return SaidAgain(replicas, "running") == 1; }));
  replicas.routers[0]->Signal(SIGKILL);
  const Heard again = Ask(replicas.http[1], body, "k");
  listener.join();
  EXPECT_TRUE(again.whole && beside.whole);
  EXPECT_FALSE(heard.empty());
  EXPECT_TRUE(again.text.starts_with(heard));
  EXPECT_EQ(again.text, beside.text);
  EXPECT_EQ(SaidAgain(replicas, "resumed"), 0) << "it had a reader all the time";
}

}  // namespace
}  // namespace aisp::e2e
