#include "net/sse_client.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>

#include "tests/net/http_fixture.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;

// Records one call's events; the test's thread waits for its end.
class Heard final : public SseListener {
 public:
  void OnResent() override { ++resent; }
  void OnHead(int code, const HttpHeaders&) override { status = code; }
  void OnEvent(const SseEvent& event) override {
    events.push_back(event.data);
    if (on_event) on_event();
  }
  void OnBody(std::string_view piece) override { body += piece; }
  void OnEnd(const Status& end, bool was_sent) override {
    error = end ? "" : end.error().message;
    sent = was_sent;
    ended.set_value();
  }
  void Await() { ASSERT_EQ(ended.get_future().wait_for(kWait), std::future_status::ready); }

  int resent = 0;
  int status = 0;
  std::vector<std::string> events;
  std::string body;
  std::string error;
  bool sent = false;
  std::function<void()> on_event;
  std::promise<void> ended;
};

class SseClientTest : public HttpServerTest {
 protected:
  void MakeClient(uint16_t port) {
    loop_.On([&] {
      auto made = SseClient::Create(&loop_.loop(), "127.0.0.1", port);
      ASSERT_TRUE(made) << made.error().message;
      client_ = std::move(*made);
    });
  }
  void Post(Heard* heard, std::unique_ptr<SseCall>* call, const std::string& target = "/stream") {
    loop_.On([&] {
      *call = client_->Post({target, {{"Content-Type", "application/json"}}, "{}"}, heard);
    });
  }
  void Drop(std::unique_ptr<SseCall>* call) {
    loop_.On([&] { call->reset(); });
  }
  void TearDown() override {
    loop_.On([&] { client_.reset(); });
    HttpServerTest::TearDown();
  }
  static void StreamThree(const Exchange& exchange) {
    if (exchange->request().path != "/stream") return Echo(exchange);
    exchange->BeginStream(200, {{"Content-Type", "text/event-stream"}});
    for (const char* event : {"data: a\n\n", ": note\n\ndata: b\r\n\r\n", "data:c\n\n"})
      exchange->Write(event);
    exchange->End();
  }

  std::unique_ptr<SseClient> client_;
};

TEST_F(SseClientTest, BringsTheEventsOfAStreamAndReusesTheConnection) {
  StartServer(StreamThree);
  MakeClient(port_);
  for (int i = 0; i < 5; ++i) {
    Heard heard;
    std::unique_ptr<SseCall> call;
    Post(&heard, &call);
    heard.Await();
    EXPECT_EQ(heard.error, "");
    EXPECT_EQ(heard.status, 200);
    EXPECT_EQ(heard.events, (std::vector<std::string>{"a", "b", "c"}));
    Drop(&call);
  }
  loop_.On([&] { EXPECT_EQ(client_->connections_opened(), 1u); });
}

TEST_F(SseClientTest, AnAnswerThatIsNoStreamComesAsABody) {
  StartServer();
  MakeClient(port_);
  Heard heard;
  std::unique_ptr<SseCall> call;
  Post(&heard, &call, "/echo");
  heard.Await();
  EXPECT_EQ(heard.body, "POST /echo?|{}");
  Drop(&call);
}

TEST_F(SseClientTest, ManyStreamsRunAtATimeOnOneThread) {
  std::vector<Exchange> open;
  options_.max_connections = 400;
  StartServer([&](const Exchange& exchange) {
    exchange->BeginStream(200, {{"Content-Type", "text/event-stream"}});
    open.push_back(exchange);
    if (open.size() < 200) return;
    for (const Exchange& each : open) {
      for (int i = 0; i < 20; ++i) each->Write("data: {\"n\":" + std::to_string(i) + "}\n\n");
      each->End();
    }
  });
  MakeClient(port_);
  std::array<Heard, 200> heard;
  std::array<std::unique_ptr<SseCall>, 200> calls;
  for (size_t i = 0; i < heard.size(); ++i) Post(&heard[i], &calls[i]);
  for (size_t i = 0; i < heard.size(); ++i) {
    heard[i].Await();
    EXPECT_EQ(heard[i].error, "");
    ASSERT_EQ(heard[i].events.size(), 20u);
    EXPECT_EQ(heard[i].events[19], "{\"n\":19}");
    Drop(&calls[i]);
  }
  loop_.On([&] { open.clear(); });
}

TEST_F(SseClientTest, DroppingACallInItsCallbackClosesItsConnection) {
  std::promise<void> gone;
  Exchange kept;
  StartServer([&](const Exchange& exchange) {
    exchange->OnDisconnect([&](HttpExchange::Gone) { gone.set_value(); });
    exchange->BeginStream(200, {{"Content-Type", "text/event-stream"}});
    exchange->Write("data: a\n\ndata: b\n\n");
    kept = exchange;
  });
  MakeClient(port_);
  Heard heard;
  std::unique_ptr<SseCall> call;
  heard.on_event = [&] { call.reset(); };
  Post(&heard, &call);
  ASSERT_EQ(gone.get_future().wait_for(kWait), std::future_status::ready);
  EXPECT_EQ(heard.events.size(), 1u);
  loop_.On([&] { kept.reset(); });
}

TEST_F(SseClientTest, ARefusedConnectionWasNotSent) {
  StartServer();
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  MakeClient(ntohs(address.sin_port));  // bound, but not listening
  Heard heard;
  std::unique_ptr<SseCall> call;
  Post(&heard, &call);
  heard.Await();
  EXPECT_FALSE(heard.sent);
  EXPECT_THAT(heard.error, HasSubstr("Connection refused"));
  Drop(&call);
  close(fd);
}

// A server of raw sockets: it answers once on a connection, waits for the second request and closes
// without an answer.
class RudeServer {
 public:
  explicit RudeServer(int answered_connections) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    listen(fd_, 8);
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port = ntohs(address.sin_port);
    thread_ = Thread("rude", [this, answered_connections] { Serve(answered_connections); });
  }
  ~RudeServer() {
    shutdown(fd_, SHUT_RDWR);
    // It may wait for the next request of a kept-alive connection.
    if (const int open = connection_.load(); open >= 0) shutdown(open, SHUT_RDWR);
    thread_.Join();
    close(fd_);
  }
  uint16_t port = 0;

 private:
  void Serve(int answered) {
    for (int n = 0;; ++n) {
      const int connection = accept(fd_, nullptr, nullptr);
      if (connection < 0) return;
      connection_ = connection;
      char bytes[4096];
      if (n < answered && recv(connection, bytes, sizeof(bytes), 0) > 0) {
        constexpr std::string_view kAnswer =
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9\r\n\r\ndata: "
            "a\n\n";
        send(connection, kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
      }
      recv(connection, bytes, sizeof(bytes), 0);
      connection_ = -1;
      close(connection);
    }
  }
  int fd_;
  std::atomic<int> connection_ = -1;
  Thread thread_;
};

TEST_F(SseClientTest, AReusedConnectionThatWasGoneIsReplacedOnce) {
  StartServer();
  RudeServer rude(2);
  MakeClient(rude.port);
  Heard first, second;
  std::unique_ptr<SseCall> call;
  Post(&first, &call);
  first.Await();
  EXPECT_EQ(first.error, "");
  Drop(&call);
  Post(&second, &call);
  second.Await();
  EXPECT_EQ(second.error, "");
  EXPECT_EQ(second.resent, 1);
  EXPECT_EQ(second.events, std::vector<std::string>{"a"});
  Drop(&call);
}

TEST_F(SseClientTest, AFreshConnectionThatClosesIsAFailureAndSoIsASecondOne) {
  StartServer();
  RudeServer rude(1);
  MakeClient(rude.port);
  Heard first, second;
  std::unique_ptr<SseCall> call;
  Post(&first, &call);
  first.Await();
  Drop(&call);
  Post(&second, &call);  // its old connection closes, and so does the new one
  second.Await();
  EXPECT_EQ(second.resent, 1);
  EXPECT_TRUE(second.sent);
  EXPECT_THAT(second.error, HasSubstr("without an answer"));
  Drop(&call);
}

}  // namespace
}  // namespace aisp
