// How much work the HttpServer does in one turn of its loop.
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/net/http_fixture.h"

namespace aisp {
namespace {

// Counts turns of a loop that is never idle while it counts.
class TurnsOfLoop {
 public:
  explicit TurnsOfLoop(IoLoop* loop) : loop_(loop) {}
  // Runs on the loop.
  void Begin() { Count(); }
  int End() {
    ended_ = true;
    return turns_;
  }

 private:
  void Count() {
    if (ended_) return;
    ++turns_;
    loop_->Post([this] { Count(); });
  }

  IoLoop* const loop_;
  int turns_ = 0;
  bool ended_ = false;
};

TEST_F(HttpServerTest, TinyChunksThatHaveArrivedShareATurnOfTheLoop) {
  constexpr int kChunks = 5000;
  TurnsOfLoop turns(&loop_.loop());
  std::promise<std::pair<int, size_t>> seen;
  StartServer([&](const Exchange& exchange) {
    seen.set_value({turns.End(), exchange->request().body.size()});
    exchange->Respond(200, {}, "");
  });
  std::string body = "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < kChunks; ++i) body += "1\r\nx\r\n";
  body += "0\r\n\r\n";
  std::unique_ptr<HttpClient> client;
  loop_.On([&] {
    client = std::make_unique<HttpClient>(Client());
    ASSERT_TRUE(client->SendRaw(body));
    turns.Begin();
  });
  auto handled = seen.get_future();
  ASSERT_EQ(handled.wait_for(kWait), std::future_status::ready);
  const auto [count, bytes] = handled.get();
  loop_.On([] {});  // waits until the counter no longer uses `turns`
  EXPECT_EQ(bytes, size_t{kChunks});
  EXPECT_LT(count, kChunks / 50);
}

TEST_F(HttpServerTest, ConnectionsThatWaitAreTakenManyAtATurn) {
  constexpr int kMany = 400;
  StartServer();
  TurnsOfLoop turns(&loop_.loop());
  std::vector<HttpClient> clients;
  loop_.On([&] {
    for (int i = 0; i < kMany; ++i) clients.push_back(Client());
    turns.Begin();
  });
  // As seen between two turns.
  std::promise<int> taken;
  std::function<void()> look = [&] {
    if (server_->connections() == kMany) return taken.set_value(turns.End());
    loop_.loop().Post(look);
  };
  loop_.loop().Post(look);
  auto all = taken.get_future();
  ASSERT_EQ(all.wait_for(kWait), std::future_status::ready);
  const int count = all.get();
  loop_.On([] {});
  EXPECT_LT(count, kMany / 4);
  EXPECT_GT(count, 3) << "others have their turns between";
}

}  // namespace
}  // namespace aisp
