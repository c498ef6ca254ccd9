// Several routers without anything in common but their workers: one is killed under load.
#include <gmock/gmock.h>

#include <atomic>
#include <csignal>
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

// One streamed answer, or what came of it before the connection broke.
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
  std::vector<std::string> beginnings(kRequests);  // what a broken answer had said
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
  // Whoever asks a third time, of yet another router, gets the same.
  for (int n = 0; n < kRequests; n += 7) {
    const Heard again = Ask(replicas.http[1], body(n), "key-" + std::to_string(n));
    EXPECT_EQ(again.text, texts[static_cast<size_t>(n)]);
  }
  RecordProperty("asked_again", asked_again.load());
  RecordProperty("compared_beginnings", compared);
}

}  // namespace
}  // namespace aisp::e2e
