// Streams, clients that disconnect, slow readers, and the end of the server.
#include <sys/socket.h>

#include <future>
#include <vector>

#include "tests/net/http_fixture.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using Gone = HttpExchange::Gone;

// Begins a stream for each request; reports the first request and its client's end to the test.
class HttpStreamTest : public HttpServerTest {
 protected:
  void StartStreams(bool begin = true) {
    StartServer([this, begin](const Exchange& exchange) {
      exchange_ = exchange;
      exchange->OnDisconnect([this](Gone why) {
        ++gone_calls_;
        if (gone_calls_ == 1) gone_.set_value(why);
      });
      if (begin) exchange->BeginStream(200, {{"Content-Type", "text/event-stream"}});
      if (begin) exchange->Write(": hello\n\n");
      arrived_.set_value();
    });
  }
  void AwaitRequest() {
    ASSERT_EQ(arrived_.get_future().wait_for(kWait), std::future_status::ready);
  }
  Gone AwaitGone() {
    auto future = gone_.get_future();
    EXPECT_EQ(future.wait_for(kWait), std::future_status::ready);
    return future.get();
  }
  void TearDown() override {
    loop_.On([&] { exchange_.reset(); });
    HttpServerTest::TearDown();
  }

  Exchange exchange_;
  std::promise<void> arrived_;
  std::promise<Gone> gone_;
  int gone_calls_ = 0;
};

TEST_F(HttpStreamTest, EventsArriveInOrderWhileTheyAreWritten) {
  StartStreams();
  HttpClient client = Client();
  const auto head = client.Open("POST", "/stream", "{}");
  ASSERT_TRUE(head) << head.error().ToString();
  EXPECT_EQ(head->Header("Transfer-Encoding"), "chunked");
  for (int i = 0; i < 50; ++i) {
    loop_.On([&] {
      exchange_->Write("id: 0:" + std::to_string(i) + "\ndata: " + std::to_string(i) + "\n\n");
    });
    const auto event = client.NextEvent();
    ASSERT_TRUE(event && *event);
    EXPECT_EQ((*event)->data, std::to_string(i));
    EXPECT_EQ((*event)->id, "0:" + std::to_string(i));
  }
  loop_.On([&] { exchange_->End(); });
  EXPECT_EQ(client.NextEvent().value(), std::nullopt);
  // The connection stays usable.
  loop_.On([&] { arrived_ = {}; });
  EXPECT_TRUE(client.Open("POST", "/again", "{}"));
  EXPECT_EQ(gone_calls_, 0);
}

TEST_F(HttpStreamTest, WritesOfOneTurnTravelInOneChunk) {
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  ASSERT_EQ(client.ReadSome().value(), ": hello\n\n");
  loop_.On([&] {
    for (int i = 0; i < 10; ++i) exchange_->Write("data: x\n\n");
  });
  EXPECT_EQ(client.ReadSome().value()->size(), 90u);
}

TEST_F(HttpStreamTest, HearsAtOnceThatAStreamingClientClosed) {
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  client.Close();
  EXPECT_EQ(AwaitGone(), Gone::kClosed);
  loop_.On([&] {
    EXPECT_FALSE(exchange_->alive());
    exchange_->Write("data: nobody\n\n");
    exchange_->End();
  });
  EXPECT_EQ(gone_calls_, 1);
}

TEST_F(HttpStreamTest, HearsAtOnceThatAWaitingClientClosed) {
  StartStreams(/*begin=*/false);
  HttpClient client = Client();
  ASSERT_TRUE(client.SendRaw("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"));
  AwaitRequest();
  client.Close();
  EXPECT_EQ(AwaitGone(), Gone::kClosed);
  loop_.On([&] { exchange_->Respond(200, {}, "late"); });
}

TEST_F(HttpStreamTest, HearsAtOnceThatAClientResetTheConnection) {
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  const linger reset{1, 0};
  setsockopt(client.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  client.Close();
  EXPECT_EQ(AwaitGone(), Gone::kClosed);
}

TEST_F(HttpStreamTest, TakesAHalfCloseForTheEndOfTheClient) {
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  shutdown(client.fd(), SHUT_WR);
  EXPECT_EQ(AwaitGone(), Gone::kClosed);
}

TEST_F(HttpStreamTest, ServesAHalfClosedClientToTheEndWhenToldTo) {
  options_.half_close_is_disconnect = false;
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  shutdown(client.fd(), SHUT_WR);
  for (int i = 0; i < 5; ++i) {
    loop_.On([&] { exchange_->Write("data: still here\n\n"); });
    const auto event = client.NextEvent();
    ASSERT_TRUE(event && *event);
    EXPECT_EQ((*event)->data, "still here");
  }
  loop_.On([&] { EXPECT_TRUE(exchange_->alive()); });
  loop_.On([&] { exchange_->End(); });
  EXPECT_EQ(client.NextEvent().value(), std::nullopt);
}

TEST_F(HttpStreamTest, HearsOfAResetAfterAHalfCloseWhenToldToServeIt) {
  options_.half_close_is_disconnect = false;
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  shutdown(client.fd(), SHUT_WR);
  loop_.On([&] { exchange_->Write("data: one\n\n"); });
  ASSERT_TRUE(client.NextEvent());
  const linger reset{1, 0};
  setsockopt(client.fd(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  client.Close();
  EXPECT_EQ(AwaitGone(), Gone::kClosed);
}

TEST_F(HttpServerTest, AnswersAtOnceEvenAfterAHalfClose) {
  StartServer();
  HttpClient client = Client();
  ASSERT_TRUE(
      client.SendRaw("GET /a HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\n"));
  shutdown(client.fd(), SHUT_WR);
  const auto answers = client.ReceiveRaw();
  ASSERT_TRUE(answers);
  EXPECT_THAT(*answers, HasSubstr("GET /a?|"));
  EXPECT_THAT(*answers, HasSubstr("GET /b?|"));
}

TEST_F(HttpStreamTest, CutsAReaderThatFallsBehindTheBound) {
  options_.max_unsent_bytes = 64 << 10;
  options_.send_buffer_bytes = 32 << 10;
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  const std::string event(1000, 'e');
  size_t written = 0;
  bool alive = true;
  while (alive && written < (256 << 20)) {
    loop_.On([&] {
      exchange_->Write(event);
      EXPECT_LE(exchange_->unsent_bytes(), options_.max_unsent_bytes);
      alive = exchange_->alive();
    });
    written += event.size();
  }
  EXPECT_FALSE(alive);
  EXPECT_EQ(AwaitGone(), Gone::kSlowReader);
  // The client gets a broken stream, never a clean end.
  EXPECT_FALSE(client.ReadRest());
}

TEST_F(HttpStreamTest, AReaderThatKeepsUpIsNeverCut) {
  options_.max_unsent_bytes = 64 << 10;
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  auto total =
      std::async(std::launch::async, [&] { return client.ReadRest().value_or("").size(); });
  size_t written = 9;
  while (written < (8 << 20)) {
    bool room = false;
    loop_.On([&] {
      room = exchange_->unsent_bytes() < (32 << 10);
      if (room) exchange_->Write(std::string(10000, 'k'));
    });
    if (room) written += 10000;
  }
  loop_.On([&] { exchange_->End(); });
  EXPECT_EQ(total.get(), written);
  EXPECT_EQ(gone_calls_, 0);
}

TEST_F(HttpStreamTest, CutsAReaderThatTakesNothingForTooLong) {
  options_.write_timeout = std::chrono::milliseconds(100);
  options_.send_buffer_bytes = 16 << 10;
  options_.max_unsent_bytes = 64 << 20;
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  loop_.On([&] { exchange_->Write(std::string(32 << 20, 's')); });
  EXPECT_EQ(AwaitGone(), Gone::kSlowReader);
}

TEST_F(HttpStreamTest, CutsAReaderThatTakesABitNowAndThen) {
  options_.write_timeout = std::chrono::milliseconds(300);
  options_.min_taken_bytes = 64 << 10;
  options_.send_buffer_bytes = 16 << 10;
  options_.max_unsent_bytes = 64 << 20;
  StartStreams();
  HttpClient client = Client();
  const int small = 4096;
  ASSERT_EQ(setsockopt(client.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  loop_.On([&] { exchange_->Write(std::string(32 << 20, 's')); });
  auto gone = gone_.get_future();
  char some[512];
  size_t taken = 0;
  while (gone.wait_for(std::chrono::milliseconds(20)) != std::future_status::ready) {
    const ssize_t n = recv(client.fd(), some, sizeof(some), MSG_DONTWAIT);
    if (n > 0) taken += static_cast<size_t>(n);
    ASSERT_LT(taken, 4u << 20) << "a trickling reader is kept";
  }
  EXPECT_EQ(gone.get(), Gone::kSlowReader);
}

TEST_F(HttpServerTest, WholeAnswersThatWaitForTheirClientsAreBounded) {
  options_.max_total_body_bytes = 48 << 20;
  options_.send_buffer_bytes = 1 << 20;
  StartServer([](const Exchange& exchange) {
    exchange->Respond(200, {{"Content-Type", "text/plain"}}, std::string(32 << 20, 'w'));
  });
  HttpClient slow = Client(), other = Client(), third = Client();
  ASSERT_TRUE(slow.Open("GET", "/"));  // and stops reading
  const auto refused = other.Request("GET", "/");
  ASSERT_TRUE(refused) << refused.error().ToString();
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(refused->Header("Retry-After"), "1");
  slow.Close();
  // There is room again once the loop has noticed it.
  int status = 0;
  for (int tries = 0; tries < 1000 && status != 200; ++tries) {
    HttpClient again = Client();
    status = again.Request("GET", "/")->status;
  }
  EXPECT_EQ(status, 200);
}

TEST_F(HttpStreamTest, DrainLetsRunningAnswersFinishAndClosesIdleConnections) {
  StartStreams();
  HttpClient idle = Client();
  HttpClient busy = Client();
  ASSERT_TRUE(busy.Open("GET", "/"));
  AwaitRequest();
  std::promise<void> drained;
  loop_.On([&] { server_->Drain([&] { drained.set_value(); }); });
  EXPECT_EQ(idle.ReceiveRaw().value_or("lost"), "");
  auto done = drained.get_future();
  EXPECT_FALSE(HttpClient::Connect("127.0.0.1", port_, kWait));
  EXPECT_EQ(done.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  loop_.On([&] {
    exchange_->Write("data: last\n\n");
    exchange_->End();
  });
  const auto event = busy.NextEvent();
  ASSERT_TRUE(event && *event);
  EXPECT_EQ((*event)->data, "last");
  EXPECT_EQ(busy.NextEvent().value(), std::nullopt);
  busy.Close();
  EXPECT_EQ(done.wait_for(kWait), std::future_status::ready);
  EXPECT_EQ(gone_calls_, 0);
}

TEST_F(HttpStreamTest, DrainOfAnIdleServerIsDoneAtOnce) {
  StartStreams();
  std::promise<void> drained;
  loop_.On([&] { server_->Drain([&] { drained.set_value(); }); });
  EXPECT_EQ(drained.get_future().wait_for(kWait), std::future_status::ready);
}

TEST_F(HttpStreamTest, AnExchangeOutlivesItsServer) {
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  loop_.On([&] { server_.reset(); });
  EXPECT_EQ(AwaitGone(), Gone::kShutdown);
  loop_.On([&] {
    EXPECT_FALSE(exchange_->alive());
    exchange_->Write("data: late\n\n");
    exchange_->End();
  });
}

TEST_F(HttpStreamTest, AStreamThatIsDroppedIsCutNotEnded) {
  StartStreams();
  HttpClient client = Client();
  ASSERT_TRUE(client.Open("GET", "/"));
  AwaitRequest();
  ASSERT_TRUE(client.ReadSome());
  loop_.On([&] { exchange_.reset(); });
  EXPECT_FALSE(client.ReadRest());
}

TEST(IoLoop, RunsPostedFunctionsInOrderAndTimersAtTheirTime) {
  LoopThread loop;
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) loop.loop().Post([&order, i] { order.push_back(i); });
  std::promise<Instant> rang;
  const Instant when = SteadyClock().Now() + std::chrono::milliseconds(20);
  std::shared_ptr<IoLoop::Timer> timer;
  std::shared_ptr<IoLoop::Timer> dropped;
  bool wrong = false;
  loop.On([&] {
    EXPECT_TRUE(loop.loop().OnLoopThread());
    timer = loop.loop().RunAt(when, [&] { rang.set_value(SteadyClock().Now()); });
    dropped = loop.loop().RunAt(when - std::chrono::milliseconds(10), [&] { wrong = true; });
    dropped.reset();
  });
  EXPECT_FALSE(loop.loop().OnLoopThread());
  EXPECT_GE(rang.get_future().get(), when);
  EXPECT_FALSE(wrong);
  ASSERT_EQ(order.size(), 1000u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  loop.On([&] { timer.reset(); });
}

}  // namespace
}  // namespace aisp
